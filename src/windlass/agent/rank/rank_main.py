"""One rank: the process that runs the user's work.

The environment and the pipes are set before this is entered. User code finds what it would find under
`python script.py`: its own `__main__`, `sys.argv`, `sys.path`, the main thread. What becomes of it is told in
`agent.rank.rank_outcome`, how the process ends in `agent.rank.rank_exit`.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windlass import names
from windlass.agent.rank.rank_outcome import RankOutcome
from windlass.agent.rank.user_main import (
    is_folder,
    make_main,
    put_first,
    run_folder,
    run_module,
    run_script,
    set_argv,
)
from windlass.wire.job_folder import JobFolder

# how many modules there were when it was last looked, and which are ours
_noted: tuple[int, list[str]] = (0, [])


def run_rank(
    plan: dict[str, Any],
    folder: JobFolder,
    *,
    rank: int,
    attempt: int,
    fill: Callable[..., Any] | None = None,
    explain: Callable[[BaseException], BaseException] = lambda error: error,
) -> int:
    """Run the work of one rank, write its result and wait for its peers; returns the exit code.

    What a function is given beside its arguments, and how errors are put, is the framework's.
    """
    outcome = RankOutcome(
        folder.result(attempt, rank),
        rank=rank,
        attempt=attempt,
        root=plan["cwd"],
        owes_result=plan["work"]["kind"] == "function",
    )
    call = _make_call(plan, folder, fill)
    step_aside(plan["paths"])
    outcome.tell_running()
    code = outcome.take(call, explain)
    outcome.wait_for_peers(plan["peer_wait_s"])
    return code


def _make_call(
    plan: dict[str, Any], folder: JobFolder, fill: Callable[..., Any] | None
) -> Callable[[], Any]:
    """What to call; everything of ours that it needs is loaded by the time this returns."""
    work = plan["work"]
    if work["kind"] == "script" and is_folder(Path(plan["cwd"], work["path"])):
        return lambda: run_folder(work["path"], [work["path"], *work["args"]])
    if work["kind"] == "script":
        # joined as Python joins it, which keeps a "./"
        path = os.path.join(plan["cwd"], work["path"])
        return lambda: run_script(path, [work["path"], *work["args"]])
    if work["kind"] == "module":
        return lambda: run_module(work["name"], work["args"])
    # the payload was made by the version that travels with us, so that one must read it
    importlib.import_module("cloudpickle")
    payload = folder.payload.read_bytes()
    file = Path(plan["cwd"], work["file"]) if work["file"] else None
    return lambda: _call_function(work["name"], file, payload, fill)


def _call_function(
    name: str, file: Path | None, payload: bytes, fill: Callable[..., Any] | None
) -> Any:
    make_main()
    set_argv([name])
    target = _import_file(file) if file else None
    function, args, kwargs = pickle.loads(payload)  # noqa: S301 - written by this job's own client
    if target is not None:
        function = getattr(target, name)
    if fill is not None:
        args, kwargs = fill(function, args, kwargs)
    return function(*args, **kwargs)


def _import_file(path: Path) -> types.ModuleType:
    """Import a file as a module of its own name, as if its folder were on the path."""
    put_first(str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def step_aside(paths: Sequence[str]) -> None:
    """Let the user's own modules win: our archive goes last, our modules are forgotten.

    An `import windlass` in user code then finds the installed package if there is one, else the
    part that travels with the agent; but first the training library, where that travels with the work.
    """
    archive = sys.path.pop(0) if sys.path and sys.path[0].endswith(".pyz") else ""
    first = (*paths, os.environ.get(names.TRAIN, ""))
    sys.path[:0] = [path for path in first if path and path not in sys.path]
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
