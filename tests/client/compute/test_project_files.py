"""Project files of calls: changes, files that nodes lack, and syntax errors."""

from __future__ import annotations

import importlib

import pytest

from windlass.bundle.manifest import EMPTY
from windlass.client.compute.calls.project_files import Project, find_project
from windlass.errors import SpecError


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "windlass.toml").touch()
    (folder / "a.py").write_text("A = 1")
    monkeypatch.chdir(folder)
    return folder


def make_project(root):
    project = Project(root, travels=True)
    project.refresh()
    return project


def test_version_depends_on_the_code_only(root):
    project = make_project(root)
    before = project.version
    (root / "a.py").write_text("A = 2")
    project.refresh()
    assert project.version != before
    (root / "a.py").write_text("A = 1")
    project.refresh()
    assert project.version == before


def test_up_to_date_node_gets_nothing(root):
    project = make_project(root)
    assert project.make_sync(project.version) is None


def test_only_changes_are_sent(root):
    (root / "large.bin").write_bytes(bytes(range(256)) * 4000)
    project = make_project(root)
    before = project.version
    about, whole = project.make_sync("")
    assert about.base == EMPTY.digest
    (root / "a.py").write_text("A = 2")
    project.refresh()
    about, changed = project.make_sync(before)
    assert about.base == before
    assert about.digest == project.version
    assert len(changed) < 1000 < len(whole)


def test_node_with_an_unknown_version_gets_everything(root):
    about, _ = make_project(root).make_sync("of another life")
    assert about.base == EMPTY.digest


def test_same_size_and_same_second(root):
    project = make_project(root)
    seen = {project.version}
    for value in range(2, 9):
        (root / "a.py").write_text(f"A = {value}")
        project.refresh()
        seen.add(project.version)
    assert len(seen) == 8


@pytest.mark.parametrize("travels", [True, False])
def test_a_syntax_error_is_raised_until_it_is_gone(root, monkeypatch, travels):
    monkeypatch.syspath_prepend(str(root))
    name = f"broken_{travels}".lower()
    path = root / f"{name}.py"
    path.write_text("A = 1")
    importlib.import_module(name)
    project = Project(root, travels=travels)
    project.refresh()
    path.write_text("A = 1\nB = = 2")
    for _ in range(2):
        with pytest.raises(SyntaxError) as caught:
            project.refresh()
        assert (caught.value.filename, caught.value.lineno) == (str(path), 2)
    path.write_text("A = 3")
    project.refresh()
    assert project.is_edited


def test_paths_are_those_of_the_nodes(root, monkeypatch):
    (root / "src").mkdir()
    monkeypatch.syspath_prepend(str(root / "src"))
    about = make_project(root).about(root / "src", "")
    assert about.cwd == "src"
    assert "src" in about.paths
    assert Project(root, travels=False).about(root, "deep").cwd == str(root / "deep")


def test_folder_that_is_sent(root, tmp_path):
    assert find_project(root / "a.py", root, "") == root
    assert find_project(None, root, "") == root
    assert find_project(root / "a.py", root, str(tmp_path)) == tmp_path
    with pytest.raises(SpecError, match="root="):
        find_project(None, root, str(tmp_path / "none"))


def test_virtual_environment_is_not_part_of_the_project(tmp_path):
    for name in ("own", "venv"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "project" / "own" / "pyvenv.cfg").touch()
    project = Project(tmp_path / "project", travels=False)
    project.refresh()
    project.refresh()  # the folder is watched from now on
    before = project.version
    (tmp_path / "project" / "own" / "one.py").touch()
    project.refresh()
    assert project.version == before
    (tmp_path / "project" / "venv" / "one.py").touch()
    project.refresh()
    assert project.version != before
