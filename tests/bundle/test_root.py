from __future__ import annotations

from pathlib import Path

import pytest

from windlass.bundle.select import MARKERS, check_root, find_root
from windlass.errors import BundleError

from .trees import touch


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "me"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.mark.parametrize("marker", MARKERS)
def test_the_nearest_marker_wins(home: Path, marker: str) -> None:
    touch(home, "outer/pyproject.toml", "outer/inner/src/train.py")
    (home / "outer" / "inner" / marker).mkdir()
    assert find_root(home / "outer/inner/src/train.py") == home / "outer" / "inner"
    assert find_root(home / "outer/inner") == home / "outer" / "inner"


def test_default_is_the_folder_of_the_script(home: Path) -> None:
    touch(home, "loose/train.py")
    assert find_root(home / "loose/train.py") == home / "loose"
    assert find_root(home / "loose") == home / "loose"


def test_home_is_not_a_project_even_with_a_marker(home: Path) -> None:
    touch(home, ".git/HEAD", "loose/deep/train.py")
    touch(home.parent, "setup.py")
    assert find_root(home / "loose/deep/train.py") == home / "loose" / "deep"


def test_script_in_home_runs_but_is_not_sent(home: Path) -> None:
    touch(home, "train.py")
    assert find_root(home / "train.py") == home
    with pytest.raises(BundleError, match="far more than a project") as caught:
        check_root(home)
    assert "separate folder" in caught.value.hint


@pytest.mark.parametrize("where", [Path("/"), Path("..")])
def test_parents_of_home_are_refused(home: Path, where: Path) -> None:
    with pytest.raises(BundleError, match="far more"):
        check_root(home / where)


def test_a_link_to_home_is_home(home: Path, tmp_path: Path) -> None:
    (tmp_path / "short").symlink_to(home)
    with pytest.raises(BundleError, match="far more"):
        check_root(tmp_path / "short")


def test_missing_path_is_named(home: Path) -> None:
    with pytest.raises(BundleError, match=r"trian\.py does not exist") as caught:
        find_root(home / "trian.py")
    assert "check the spelling" in caught.value.hint


def test_file_as_root_is_refused(home: Path) -> None:
    touch(home, "p/train.py")
    with pytest.raises(BundleError, match="not a folder"):
        check_root(home / "p/train.py")


def test_link_cycle_is_reported(home: Path) -> None:
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    with pytest.raises(BundleError, match="cannot read"):
        find_root(home / "a")


def test_shared_temporary_folder_is_not_a_project() -> None:
    with pytest.raises(BundleError, match="contains far more than a project"):
        check_root(Path("/tmp"))
