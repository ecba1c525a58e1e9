"""Golden files: what was rendered once and looked at. A missing one fails.

Renew them with `RENEW_GOLDEN=1 pytest tests/kube tests/engines`, and read the diff before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.cli.verbs.export import render_manifests

_FOLDER = Path(__file__).parents[1] / "golden"
_RENEW = os.environ.get("RENEW_GOLDEN") == "1"


def check_golden(name: str, documents: Sequence[Any]) -> None:
    """Compare documents, as an export prints them, with the file of that name."""
    path = _FOLDER / name
    text = render_manifests(documents)
    if _RENEW:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; RENEW_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8")
