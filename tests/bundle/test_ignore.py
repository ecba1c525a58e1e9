from __future__ import annotations

from pathlib import Path

import pytest

from windlass.bundle.select import NO_RULES, OWN_FILE, add_file
from windlass.errors import BundleError

from .trees import touch


def test_deepest_file_with_a_matching_rule_wins(tmp_path: Path) -> None:
    touch(tmp_path, OWN_FILE, text="*.log\ndata/\n")
    touch(tmp_path, f"a/{OWN_FILE}", text="!keep.log\n")
    rules = add_file(add_file(NO_RULES, tmp_path, OWN_FILE), tmp_path, f"a/{OWN_FILE}")
    assert rules.negates
    assert rules.verdict("a/keep.log") is False
    assert rules.verdict("keep.log") is True
    assert rules.verdict("a/b/other.log") is True
    assert rules.verdict("data/") is True
    assert rules.verdict("a/data/x") is True
    assert rules.verdict("train.py") is None


def test_rule_applies_to_its_own_folder_only(tmp_path: Path) -> None:
    touch(tmp_path, f"a/{OWN_FILE}", text="/x.py\n")
    rules = add_file(NO_RULES, tmp_path, f"a/{OWN_FILE}")
    assert rules.verdict("a/x.py") is True
    assert rules.verdict("x.py") is None
    assert rules.verdict("a/b/x.py") is None
    assert not rules.negates


def test_byte_order_mark_is_not_part_of_the_first_pattern(tmp_path: Path) -> None:
    touch(tmp_path, OWN_FILE, text="\ufeff*.bin\n")
    assert add_file(NO_RULES, tmp_path, OWN_FILE).verdict("x.bin") is True


def test_a_bad_line_names_the_file(tmp_path: Path) -> None:
    touch(tmp_path, f"a/{OWN_FILE}", text="!\n")
    with pytest.raises(BundleError, match=r"a/\.windlassignore"):
        add_file(NO_RULES, tmp_path, f"a/{OWN_FILE}")
