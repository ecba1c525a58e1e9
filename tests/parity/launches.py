"""One script, started in several ways: the output, the files and the exit status of each launch.

Each launch runs once, even if several tests use it or tests run in several processes. Its files are in a
folder that all of them share. Every launch has its own copy of `project/`, whose paths are replaced by
`<folder>` in comparisons.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.snippets import SNIPPETS
from waits import wait_for

from windlass.wire.log_lines import FULL, REPLACED, read_record

PROJECT = Path(__file__).parent / "project"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
WINDLASS = (sys.executable, "-m", "windlass.cli.main", "run")
_TIMEOUT_S = 100.0
# Not inherited, because these variables belong to the shell that runs the tests.
_NOT_INHERITED = ("WINDLASS_", "TORCHELASTIC_", "PYTHON", "OMP_", "LC_", "PYTEST_", "NO_COLOR")


@dataclass(frozen=True)
class Launch:
    """One command: `python`, `torchrun` or `windlass`, its arguments, and its environment."""

    how: str
    words: tuple[str, ...]
    procs: int = 1
    nodes: int = 1
    options: tuple[str, ...] = ()  # options of the launcher
    env: tuple[tuple[str, str], ...] = ()
    # the signal for the launcher once every rank has written a file `up-RANK`
    stop_with: int = 0

    @property
    def num_ranks(self) -> int:
        return self.procs * self.nodes

    def render(self, folder: Path) -> list[str]:
        if self.how == "python":
            return [sys.executable, *self.options, *self.words]
        if self.how == "torchrun":
            size = [
                "--nproc-per-node",
                str(self.procs),
                "--log-dir",
                str(folder / "log"),
                "-r",
                "3",
            ]
            return [*TORCHRUN, *size, *self.options, *self.words]
        size = ["--nodes", str(self.nodes), "--procs", str(self.procs)]
        return [*WINDLASS, *size, *self.options, *self.words]


@dataclass(frozen=True)
class Ran:
    """Result of a launch."""

    folder: Path
    code: int  # exit code of the launcher
    output: str  # output of the launcher itself, both streams
    out: tuple[bytes, ...]  # output of each rank in the last attempt
    err: tuple[bytes, ...]
    verdict: dict[str, Any] | None  # windlass only

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def seen(self, name: str) -> Any:
        """Return the JSON that a rank wrote, with the folder's name replaced."""
        path = self.project / f"{name}.json"
        assert path.exists(), f"no {path.name}: {self.output}\n{b''.join(self.err).decode()}"
        return json.loads(self.neutral(path.read_text()))

    def neutral(self, text: str) -> str:
        return text.replace(str(self.project), "<folder>")

    def text(self, stream: str, rank: int = 0) -> str:
        return self.neutral(getattr(self, stream)[rank].decode(errors="backslashreplace"))

    @property
    def status(self) -> int:
        """Exit status of the first failed rank, as in `subprocess`. A signal is negative."""
        if self.verdict is None:
            return self.code
        if (
            self.verdict["exception"] == "KeyboardInterrupt"
        ):  # Python itself exits by the signal then
            return -signal.SIGINT
        if self.verdict["signal"]:
            return -signal.Signals[self.verdict["signal"]]
        code = self.verdict["exit_code"]
        return 1 if code is None and self.verdict["exception"] else code


class Launches:
    """Cache that runs each launch once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Launch, Ran] = {}

    def __call__(self, how: str, *words: str, **fields: Any) -> Ran:
        launch = Launch(how, words, **{**fields, "env": tuple(fields.get("env", {}).items())})
        if launch not in self._known:
            digest = hashlib.sha256(repr(launch).encode()).hexdigest()[:12]
            folder = self._root / f"{how}-{Path(words[0]).stem}-{digest}"
            with _lock(folder.with_suffix(".lock")):
                if not (folder / "ended.json").exists():
                    _run(launch, folder)
            self._known[launch] = _read(launch, folder)
        return self._known[launch]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(launch: Launch, folder: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT, folder / "project", symlinks=True, ignore=ignore)
    script = (PROJECT / "start.py").read_text()
    with_torch = script.replace("# -- imports --", "import torch_observations  # noqa: F401")
    (folder / "project" / "start_torch.py").write_text(with_torch)
    for name, source in SNIPPETS.items():
        (folder / "project" / f"snippet_{name}.py").write_text(source)
    (folder / "project" / "temporary").mkdir()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
    env = {
        **environ,
        # In the C locale, Python changes LC_CTYPE for its children, so the ranks of every launcher differ.
        "LANG": "C.UTF-8",
        "WINDLASS_HOME": str(folder / "home"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        **dict(launch.env),
    }
    # Files instead of pipes, because a process that outlives the launcher would keep a pipe open.
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            launch.render(folder),
            cwd=folder / "project",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            if launch.stop_with:
                _stop(process, launch, folder / "project")
            code = process.wait(_TIMEOUT_S)
        except BaseException as error:
            process.kill()
            process.wait()
            code = 124
            err.write(f"\nnever ended: {error}\n".encode())
    (folder / "ended.json").write_text(json.dumps({"code": code}))


def _stop(process: subprocess.Popen[bytes], launch: Launch, project: Path) -> None:
    def is_up() -> bool:
        ranks = [project / f"up-{rank}" for rank in range(launch.num_ranks)]
        return all(path.exists() for path in ranks) or process.poll() is not None

    wait_for(is_up, "every rank is up", _TIMEOUT_S / 2)
    process.send_signal(launch.stop_with)


def _read(launch: Launch, folder: Path) -> Ran:
    code = json.loads((folder / "ended.json").read_text())["code"]
    streams = (folder / "out").read_bytes(), (folder / "err").read_bytes()
    output = b"\n".join(streams).decode(errors="backslashreplace")
    if launch.how == "python":
        return Ran(folder, code, output, streams[:1], streams[1:], None)
    if launch.how == "torchrun":
        last = sorted(folder.glob("log/*/attempt_*"))[-1]
        ranks = [last / str(rank) for rank in range(launch.num_ranks)]
        out, err = (
            tuple((rank / f"{name}.log").read_bytes() for rank in ranks)
            for name in ("stdout", "stderr")
        )
        return Ran(folder, code, output, out, err, None)
    jobs = list(folder.glob("home/jobs/*"))
    if not jobs:  # the launch was refused
        return Ran(folder, code, output, (b"",), (b"",), None)
    status = json.loads((jobs[0] / "status.json").read_text())
    last = jobs[0] / f"attempt-{status['attempt']}"
    logs = [(last / f"rank-{rank}.log").read_bytes() for rank in range(launch.num_ranks)]
    out, err = (tuple(_join(log, stream) for log in logs) for stream in ("stdout", "stderr"))
    return Ran(folder, code, output, out, err, status["verdict"])


def _join(log: bytes, stream: str) -> bytes:
    """Reassemble what a rank wrote to one of its streams from the records of its log."""
    records = filter(None, map(read_record, log.split(b"\n")))
    ends = {FULL: b"\n", REPLACED: b"\r"}
    return b"".join(r.data + ends.get(r.tag, b"") for r in records if r.stream == stream)
