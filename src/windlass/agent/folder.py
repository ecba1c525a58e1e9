"""A folder or an archive with `__main__.py`, run as `python FOLDER` runs it.

Called in a rank by `agent.rank`. The standard library's `runpy.run_path` would take the module away at the
end, which atexit handlers and threads may still want.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path


def is_folder(path: Path) -> bool:
    """Whether Python would look for `__main__` in it."""
    return path.is_dir() or (path.suffix in (".pyz", ".zip") and zipfile.is_zipfile(path))


def run_folder(path: str, argv: list[str]) -> None:
    """Be `__main__` of what is in a folder or archive."""
    sys.argv = argv
    path = os.path.abspath(path)
    sys.path.insert(0, path)
    spec = PathFinder.find_spec("__main__", [path])
    code = spec.loader.get_code("__main__") if spec and spec.loader else None  # type: ignore[attr-defined]
    if spec is None or code is None:
        raise ImportError(f"can't find '__main__' module in {path!r}")
    main = types.ModuleType("__main__")
    main.__file__ = spec.origin
    main.__loader__, main.__spec__, main.__package__ = spec.loader, spec, spec.parent
    main.__cached__ = spec.cached  # type: ignore[attr-defined]
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the point
