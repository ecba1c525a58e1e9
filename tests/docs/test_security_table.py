"""The table of attacks in docs/security.md and the files of tests/attacks name each other, one to one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_is_a_test_and_every_test_a_row():
    rows = re.findall(r"^\|.*\|([^|]*)\|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(test_\w+\.py)`", row)}
    assert named == {path.name for path in (ROOT / "tests/attacks").glob("test_*.py")}
