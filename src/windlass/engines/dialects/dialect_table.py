"""The dialects by name, each imported on use. Adding one is a file and a row."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.engines.dialects.dialect import Dialect

_DIALECTS = {
    "kubernetes": "windlass.engines.dialects.kubernetes:KUBERNETES",
    "monarchmesh": "windlass.engines.dialects.monarchmesh:MONARCHMESH",
    "pytorchjob": "windlass.engines.dialects.pytorchjob:PYTORCHJOB",
    "raycluster": "windlass.engines.dialects.raycluster:RAYCLUSTER",
    "trainjob": "windlass.engines.dialects.trainjob:TRAINJOB",
}


def dialect_names() -> tuple[str, ...]:
    return tuple(_DIALECTS)


def load_dialect(name: str) -> Dialect:
    module, _, attribute = _DIALECTS[name].partition(":")
    dialect: Dialect = getattr(importlib.import_module(module), attribute)
    return dialect
