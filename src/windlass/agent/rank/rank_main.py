"""Main program of a rank, the process that runs the user's work.

The environment and the pipes are set before this module runs. User code runs as under `python script.py`,
with its own `__main__`, `sys.argv`, `sys.path` and the main thread. A script, a module or a folder runs as
Python would run it. The fork server imports this module once. `agent.rank.rank_outcome`
reports the outcome, and `agent.rank_process` ends the process.
"""

from __future__ import annotations

import _imp
import builtins
import importlib
import importlib.util
import itertools
import os
import pickle
import runpy
import sys
import types
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.agent.rank.rank_outcome import RankOutcome
from windlass.agent.rank_process import settle_python
from windlass.frameworks.framework import load_framework
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.forkserver import CallRankSetup

if TYPE_CHECKING:
    from windlass.frameworks.framework import Fill

# Python loads these before any script runs, so files next to the script never replace them.
_LOADED_BY_PYTHON = frozenset(
    {
        *("os", "site", "stat", "posixpath", "genericpath", "_collections_abc", "_sitebuiltins"),
        *("codecs", "encodings", "io", "abc", "zipimport", "__main__"),
    }
)
# number of modules at the last check, and the names of those that belong to Windlass
_noted: tuple[int, list[str]] = (0, [])


def run_script(path: str, argv: list[str]) -> None:
    """Run a script as `python path ARGS` would."""
    set_argv(argv)
    put_first(os.path.dirname(os.path.realpath(path)))
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    main = make_main()
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__cached__ = None  # type: ignore[attr-defined]
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the point


def run_module(name: str, args: list[str]) -> None:
    """Run a module as `python -m name ARGS` would."""
    set_argv(["-m", *args])
    sys.orig_argv.insert(2, name)
    put_first(os.getcwd())
    make_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001 - as `python -m` does


def is_folder(path: Path) -> bool:
    """Return whether Python would look for a `__main__` inside this path."""
    return path.is_dir() or (path.suffix in (".pyz", ".zip") and zipfile.is_zipfile(path))


def run_folder(path: str, argv: list[str]) -> None:
    """Run the `__main__` of a folder or archive.

    The standard library's `runpy.run_path` would remove the module at the end, but exit handlers and threads
    may still need it.
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
    """Replace Windlass's `__main__` with a new one, like the one that the interpreter creates."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def set_argv(argv: list[str]) -> None:
    """Set `sys.argv` and `sys.orig_argv` for user code."""
    sys.argv = argv
    sys.orig_argv = [sys.executable, *argv]


def put_first(folder: str) -> None:
    """Put `folder` first on the import path, as Python does for a script, unless in safe-path mode."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
        hide_loaded(folder)


def hide_loaded(folder: str) -> None:
    """Unload modules that Windlass has loaded if `folder` provides modules of the same name."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for name in {entry.partition(".")[0] for entry in entries} & sys.modules.keys():
        if _would_find(folder, name):
            for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
                del sys.modules[loaded]


def _would_find(folder: str, name: str) -> bool:
    """Return whether a fresh interpreter would import the loaded module `name` from `folder` instead."""
    if name in _LOADED_BY_PYTHON or name in sys.builtin_module_names or _imp.is_frozen(name):
        return False
    spec: ModuleSpec | None = PathFinder.find_spec(name, [folder])
    known = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.has_location and spec.origin != getattr(known, "origin", None)


def prepare(framework: str) -> None:
    """Import what ranks of this framework need. Runs in the fork server, once for all ranks."""
    if load_framework(framework).takes_commands:
        importlib.import_module("windlass.agent.rank.rank_setup")


def enter_callee(fd: int, about: CallRankSetup) -> int:
    """Take calls in a prepared process, forked or spawned. Return the exit code."""
    from windlass.agent.rank.call_rank import serve

    settle_python()
    return serve(fd, about)


def enter_work(plan: dict[str, Any], folder: JobFolder, *, rank: int, attempt: int) -> int:
    """Run the work of one rank in a prepared process, forked or spawned. Return the exit code.

    Writes the rank's result and waits for its peers. The framework may add arguments to a function call and
    may replace exceptions.
    """
    framework = load_framework(plan["framework"])
    work, paths = plan["work"], plan["paths"]
    if work["kind"] == "command":
        from windlass.agent.rank.rank_setup import run_command

        run_command(work["argv"], folder, rank=rank, attempt=attempt)
    framework.apply_env()
    settle_python()
    if names.STEPS in os.environ:
        from windlass.agent.rank.rank_setup import run_prelude

        paths = [*run_prelude(folder, rank=rank, attempt=attempt), *paths]
    outcome = RankOutcome(
        folder.result(attempt, rank),
        rank=rank,
        attempt=attempt,
        root=plan["cwd"],
        needs_result=work["kind"] == "function",
    )
    call = _make_call(plan, folder, framework.fill)
    prefer_user_modules(paths)
    outcome.report_running()
    code = outcome.take(call, framework.explain)
    outcome.wait_for_peers(plan["peer_wait_s"])
    return code


def _make_call(plan: dict[str, Any], folder: JobFolder, fill: Fill) -> Callable[[], Any]:
    """Return a function that does the work. Loads the modules of Windlass that it needs."""
    work = plan["work"]
    if work["kind"] == "script" and is_folder(Path(plan["cwd"], work["path"])):
        return lambda: run_folder(work["path"], [work["path"], *work["args"]])
    if work["kind"] == "script":
        # keeps a leading "./", as Python does
        path = os.path.join(plan["cwd"], work["path"])
        return lambda: run_script(path, [work["path"], *work["args"]])
    if work["kind"] == "module":
        return lambda: run_module(work["name"], work["args"])
    # the bundled version created the payload, so it must also read it
    importlib.import_module("cloudpickle")
    payload = folder.payload.read_bytes()
    file = Path(plan["cwd"], work["file"]) if work["file"] else None
    return lambda: _call_function(work["name"], file, payload, fill)


def _call_function(name: str, file: Path | None, payload: bytes, fill: Fill) -> Any:
    make_main()
    set_argv([name])
    target = _import_file(file) if file else None
    function, args, kwargs = pickle.loads(payload)  # noqa: S301 - written by this job's own client
    if target is not None:
        function = getattr(target, name)
    args, kwargs = fill(function, args, kwargs)
    return function(*args, **kwargs)


def _import_file(path: Path) -> types.ModuleType:
    """Import a file under its own name, as if its folder were on the import path."""
    put_first(str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def prefer_user_modules(paths: Sequence[str]) -> None:
    """Give the user's modules precedence over Windlass's archive and modules.

    Moves the archive to the end of the path, and unloads all modules of Windlass.

    Then `import windlass` in user code finds the training library if the job carries it. Otherwise it finds
    the installed package, or else the part in the agent's archive.
    """
    archive = sys.path.pop(0) if sys.path and sys.path[0].endswith(".pyz") else ""
    first = (*paths, os.environ.get(names.TRAIN, ""))
    sys.path[:0] = [path for path in first if path and path not in sys.path]
    if archive:
        sys.path.append(archive)
        for name in _find_ours():
            del sys.modules[name]


def note_modules() -> None:
    """Record which modules belong to Windlass.

    Runs in the fork server, because a scan in a rank would copy half of its memory.
    """
    global _noted
    _noted = (0, [])
    _noted = (len(sys.modules), _find_ours())


def _find_ours() -> list[str]:
    num_known, known = _noted
    new = itertools.islice(reversed(sys.modules), len(sys.modules) - num_known)
    return [*known, *(name for name in list(new) if name.partition(".")[0] == "windlass")]
