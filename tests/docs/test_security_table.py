"""Table of attacks in docs/security.md, and the files of tests/attacks. They must match one to one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_rows_and_test_files_match():
    rows = re.findall(r"^\|.*\|([^|]*)\|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(test_\w+\.py)`", row)}
    assert named == {path.name for path in (ROOT / "tests/attacks").glob("test_*.py")}
