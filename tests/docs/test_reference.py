"""Reference pages. They match the code, and the code documents every parameter."""

from __future__ import annotations

import inspect

import public_names
import pytest
import write_reference

import windlass
from windlass.cli.verb_table import VERBS
from windlass.settings import SETTINGS

PAGES = write_reference.render_pages()
PUBLIC = dict(public_names.find_functions())


@pytest.mark.parametrize("page", PAGES)
def test_page_matches_the_code(page):
    assert (write_reference.FOLDER / page).read_text() == PAGES[page], "run `make reference`"


def test_there_are_no_other_pages():
    assert sorted(path.name for path in write_reference.FOLDER.iterdir()) == sorted(PAGES)


def test_every_public_name_is_in_it():
    named = {*public_names.FUNCTIONS, *public_names.CLASSES, *public_names.ERRORS, "__version__"}
    assert set(windlass.__all__) <= named
    for verb in VERBS:
        assert f"## windlass {verb}\n" in PAGES["cli.md"]
    for setting in SETTINGS:
        assert f"| `{setting.name}` |" in PAGES["settings.md"]


@pytest.mark.parametrize("name", PUBLIC)
def test_each_parameter_is_documented(name):
    doc = public_names.read_doc(PUBLIC[name])
    asked = [parameter.name for parameter in public_names.find_parameters(PUBLIC[name])]
    explained = public_names.find_explained(doc)
    assert doc
    assert [one for one in asked if one not in explained] == []


@pytest.mark.parametrize("owner", public_names.CLASSES)
def test_each_property_is_documented(owner):
    members = dict(public_names.find_members(owner))
    assert [name for name, member in members.items() if not inspect.getdoc(member)] == []


def test_internal_names_exist():
    known = {
        f"{owner}.{name}" for owner, kind in public_names.CLASSES.items() for name in vars(kind)
    }
    assert known >= public_names.INTERNAL
