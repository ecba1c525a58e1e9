"""A script, a module or a folder, entered as `python` enters it: `__main__`, `sys.argv`, `sys.path`.

Runs in a rank, which `agent.rank.rank_main` has prepared. What the code raises is raised here.
"""

from __future__ import annotations

import _imp
import builtins
import os
import runpy
import sys
import types
import zipfile
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

# There before any script runs, whatever lies beside it.
_LOADED_BY_PYTHON = frozenset(
    {
        *("os", "site", "stat", "posixpath", "genericpath", "_collections_abc", "_sitebuiltins"),
        *("codecs", "encodings", "io", "abc", "zipimport", "__main__"),
    }
)


def run_script(path: str, argv: list[str]) -> None:
    """Be `python path ARGS`."""
    set_argv(argv)
    put_first(os.path.dirname(os.path.realpath(path)))
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    main = make_main()
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__cached__ = None  # type: ignore[attr-defined]
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the point


def run_module(name: str, args: list[str]) -> None:
    """Be `python -m name ARGS`."""
    set_argv(["-m", *args])
    sys.orig_argv.insert(2, name)
    put_first(os.getcwd())
    make_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001 - as `python -m` does


def is_folder(path: Path) -> bool:
    """Whether Python would look for a `__main__` inside this path."""
    return path.is_dir() or (path.suffix in (".pyz", ".zip") and zipfile.is_zipfile(path))


def run_folder(path: str, argv: list[str]) -> None:
    """Run the `__main__` of a folder or archive.

    The standard library's `runpy.run_path` would take the module away at the end, which atexit handlers and
    threads may still want.
    """
    set_argv(argv)
    path = os.path.abspath(path)
    sys.path.insert(0, path)
    hide_loaded(path)
    spec = PathFinder.find_spec("__main__", [path])
    code = spec.loader.get_code("__main__") if spec and spec.loader else None  # type: ignore[attr-defined]
    if spec is None or code is None:
        raise ImportError(f"can't find '__main__' module in {path!r}")
    main = make_main()
    main.__file__ = spec.origin
    main.__loader__, main.__spec__, main.__package__ = spec.loader, spec, spec.parent
    main.__cached__ = spec.cached  # type: ignore[attr-defined]
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the point


def make_main() -> types.ModuleType:
    """A `__main__` as the interpreter makes it, in the place of ours."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def set_argv(argv: list[str]) -> None:
    """What the process was started with, as user code sees it."""
    sys.argv = argv
    sys.orig_argv = [sys.executable, *argv]


def put_first(folder: str) -> None:
    """Import from `folder` before anything else, as Python does from a script's, unless it is told not to."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
        hide_loaded(folder)


def hide_loaded(folder: str) -> None:
    """Forget modules that only we have loaded by now and that `folder` has files for: those win."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for name in {entry.partition(".")[0] for entry in entries} & sys.modules.keys():
        if _would_find(folder, name):
            for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
                del sys.modules[loaded]


def _would_find(folder: str, name: str) -> bool:
    """Whether a fresh interpreter would import `name`, which is loaded, from `folder` instead."""
    if name in _LOADED_BY_PYTHON or name in sys.builtin_module_names or _imp.is_frozen(name):
        return False
    spec: ModuleSpec | None = PathFinder.find_spec(name, [folder])
    known = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.has_location and spec.origin != getattr(known, "origin", None)
