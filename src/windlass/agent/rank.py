"""One rank: the process that runs the user's work.

The environment and the pipes are set before this is entered. User code finds what it would find under
`python script.py`: its own `__main__`, `sys.argv`, `sys.path`, the main thread. What it returns or raises is
written to the rank's result file. Nothing here outlives the rank.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import importlib.util
import itertools
import os
import pickle
import platform
import runpy
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from windlass import names, records
from windlass.agent import report, values
from windlass.agent.raised import make_error, print_error
from windlass.errors import BundleError
from windlass.wire.folder import JobFolder
from windlass.wire.results import ResultHeader, write_result

_MAX_TEXT = 10_000
# how many modules there were when it was last looked, and which are ours
_noted: tuple[int, list[str]] = (0, [])


def run_rank(plan: dict[str, Any], folder: JobFolder, *, rank: int, attempt: int) -> NoReturn:
    """Run the work of one rank, leave its result, and end the process as Python would."""
    me = _Rank(plan, folder, rank, attempt)
    call = _make_call(plan, folder)
    step_aside(plan["paths"])
    me.notify({"type": "running"})
    try:
        value = call()
    except SystemExit as error:
        code = me.exited(error)
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its outcome
        code = me.raised(error)
    else:
        code = me.returned(value)
    leave(code)


class _Rank:
    """What one rank says of itself: to its result file, and to its agent."""

    def __init__(self, plan: dict[str, Any], folder: JobFolder, rank: int, attempt: int) -> None:
        self._path = folder.result(attempt, rank)
        self._who: dict[str, Any] = {"rank": rank, "attempt": attempt}
        self._root = plan["cwd"]

    def notify(self, message: dict[str, Any]) -> None:
        path = os.environ.get(names.REPORT_SOCKET, "")
        if path:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                report.send(sender, path, {**message, **self._who, "at_s": time.time()})

    def returned(self, value: Any) -> int:
        try:
            payload = values.dump(value, name="result")
        except BundleError as error:
            return self.raised(error)
        try:
            text, is_json, plain = describe(value)
            self._write(payload, state="returned", repr=text, is_json=is_json, json=plain)
        except OSError as error:
            what = f"the result of {len(payload)} bytes could not be kept: {error.strerror}"
            return self.raised(OSError(error.errno, what, str(self._path)))
        return 0

    def exited(self, error: SystemExit) -> int:
        if error.code is None or error.code == 0:
            return self.returned(None)
        code = error.code if isinstance(error.code, int) else 1
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
        info = make_error(error, root=self._root)
        self._tell(b"", state="exited", exit_code=code & 0xFF, error=info)
        return code & 0xFF

    def raised(self, error: BaseException) -> int:
        info = make_error(error, root=self._root)
        print_error(error)
        try:
            payload = values.dump(error, name="exception")
        except BundleError:
            payload = b""
        self._tell(payload, state="raised", error=info)
        return 1

    def _tell(self, payload: bytes, **fields: Any) -> None:
        header = ResultHeader(
            at_s=time.time(), python=platform.python_version(), **self._who, **fields
        )
        with contextlib.suppress(OSError):  # a full disk: the agent is told all the same
            write_result(self._path, header, payload)
        # last, since from here on this rank is being stopped
        self.notify({"type": "outcome", "header": records.to_json(header)})

    def _write(self, payload: bytes, **fields: Any) -> None:
        header = ResultHeader(
            at_s=time.time(), python=platform.python_version(), **self._who, **fields
        )
        write_result(self._path, header, payload)


def _make_call(plan: dict[str, Any], folder: JobFolder) -> Callable[[], Any]:
    """What to call; everything of ours that it needs is loaded by the time this returns."""
    work = plan["work"]
    if work["kind"] == "script":
        return lambda: _run_script(Path(plan["cwd"], work["path"]), [work["path"], *work["args"]])
    if work["kind"] == "module":
        return lambda: _run_module(work["name"], work["args"])
    # the payload was made by the version that travels with us, so that one must read it
    importlib.import_module("cloudpickle")
    payload = folder.payload.read_bytes()
    file = Path(plan["cwd"], work["file"]) if work["file"] else None
    return lambda: _call_function(work["name"], file, payload)


def _run_script(path: Path, argv: list[str]) -> None:
    sys.argv = argv
    sys.path.insert(0, str(path.resolve().parent))
    code = compile(path.read_bytes(), str(path), "exec")
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the point


def _run_module(name: str, args: list[str]) -> None:
    sys.argv = [name, *args]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _call_function(name: str, file: Path | None, payload: bytes) -> Any:
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = [name]
    target = _import_file(file) if file else None
    function, args, kwargs = pickle.loads(payload)  # noqa: S301 - written by this job's own client
    if target is not None:
        function = getattr(target, name)
    return function(*args, **kwargs)


def _import_file(path: Path) -> types.ModuleType:
    """Import a file as a module of its own name, as if its folder were on the path."""
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def step_aside(paths: list[str]) -> None:
    """Let the user's own modules win: our archive goes last, our modules are forgotten.

    An `import windlass` in user code then finds the installed package if there is one, else the
    part that travels with the agent.
    """
    archive = sys.path.pop(0) if sys.path and sys.path[0].endswith(".pyz") else ""
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if archive:
        sys.path.append(archive)
        for name in _find_ours():
            del sys.modules[name]


def note_modules() -> None:
    """In the fork server: which modules are ours. A rank that looked at all would copy half of memory."""
    global _noted
    _noted = (0, [])
    _noted = (len(sys.modules), _find_ours())


def _find_ours() -> list[str]:
    num_known, known = _noted
    new = itertools.islice(reversed(sys.modules), len(sys.modules) - num_known)
    return [*known, *(name for name in list(new) if name.partition(".")[0] == "windlass")]


def describe(value: Any) -> tuple[str, bool, Any]:
    """A result for people (bounded text) and for programs (JSON, when it is that and small)."""
    import json

    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    try:
        plain = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text[:_MAX_TEXT], False, None
    is_json = len(plain) <= _MAX_TEXT
    return text[:_MAX_TEXT], is_json, value if is_json else None


def leave(code: int) -> NoReturn:
    """End as Python does, threads joined, exit handlers run, but without tearing modules down."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what the interpreter calls
        atexit._run_exitfuncs()  # noqa: SLF001
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
