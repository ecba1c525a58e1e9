"""Golden files: what was rendered once and looked at. A missing one fails.

Renew them with `RENEW_GOLDEN=1 pytest tests/kube tests/engines`, and read the diff before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from windlass import records

_FOLDER = Path(__file__).parent / "golden"
_RENEW = os.environ.get("RENEW_GOLDEN") == "1"


def check_golden(name: str, documents: Sequence[Any]) -> None:
    """Compare documents with the file of that name, as YAML."""
    path = _FOLDER / name
    plain = [records.to_json(document) for document in documents]
    text = yaml.safe_dump_all(plain, sort_keys=False, allow_unicode=True, width=100)
    if _RENEW:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; RENEW_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8")
