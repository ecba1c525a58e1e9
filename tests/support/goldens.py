"""Golden files: rendered texts that were reviewed once. A missing file fails the test.

To update them, run `RENEW_GOLDEN=1 pytest tests/kube tests/engines` and review the diff before committing it.
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
    """Compare documents, as an export prints them, with the golden file of that name."""
    path = _FOLDER / name
    text = render_manifests(documents)
    if _RENEW:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; RENEW_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8")
