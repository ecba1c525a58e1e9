"""Page of all messages. It matches the records, and every receiver handles each message."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from windlass.records import find_fields
from windlass.wire.message import Direction
from windlass.wire.messages import calls, computes, forkserver, jobs, ranks

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
DIRECTIONS = {
    name: value
    for module in (jobs, calls, computes, ranks, forkserver)
    for name, value in vars(module).items()
    if isinstance(value, Direction)
}


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("write_protocol", TOOLS / "write_protocol.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_matches_the_records(page):
    assert (ROOT / "docs/protocol.md").read_text() == page.render(), "run make protocol"


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_direction_is_on_the_page(page, name):
    assert DIRECTIONS[name] in page._DIRECTIONS


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_kind_is_readable_and_documented(name):
    for kind, cls in DIRECTIONS[name].kinds.items():
        assert cls.kind == kind
        assert cls.__doc__
        find_fields(cls)  # all names in its annotations resolve
