"""Execution of an image's steps on a node. Each step runs once.

A step is a command that runs until it exits. Each line of its output is reported as it arrives. The exit code
comes through a separate pipe because the agent reaps every child. Packages are installed into an overlay, a
virtual environment on top of the image's own packages. uv installs them if it can be used, otherwise pip.
The nodes of a compute and the ranks of a job use this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.errors import StepFailed
from windlass.records import to_json
from windlass.spec.work import ImageStep, PipStep, RunStep
from windlass.trusted import make_own
from windlass.wire.job_folder import write_atomically

_SHELL = 'cd "$1" && shift && "$@" 3>&-; echo $? >&3'
_STATUS_FD = 3
_MAX_LINE = 2000
_MAX_LINES = 5000
_MAX_REST = 1 << 16
_TAIL_LINES = 20
_REST_S = 1.0  # limit for reading the last output, because a child may keep the pipe open
# Settings of pip that do not affect which packages it installs. uv reads no pip settings, so any other
# setting prevents its use.
_HARMLESS = frozenset(
    {
        *("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR", "PIP_CACHE_DIR", "PIP_NO_INPUT"),
        *("PIP_ROOT_USER_ACTION", "PIP_DEFAULT_TIMEOUT", "PIP_BREAK_SYSTEM_PACKAGES"),
        *("PIP_PROGRESS_BAR", "PIP_QUIET", "PIP_VERBOSE", "PIP_NO_COLOR", "PIP_RETRIES"),
    }
)
# Each of these redirects pip away from the overlay.
_MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_PYTHON", "PYTHONHOME")
_WHEEL = ".whl"
_LENT = "windlass-lent"  # INSTALLER of the metadata copied from the image's own packages
_CONFIG = "PIP_CONFIG_FILE"
_CONFIGS = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")

# Both scripts run in the image's interpreter. The first creates the overlay and its `pip`.
_MAKE = """
import sys
sys.path = [path for path in sys.path if path]
import os, site, venv
folder = sys.argv[1]
venv.EnvBuilder(symlinks=True, clear=True).create(folder)
version = "python%d.%d" % sys.version_info[:2]
below = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
with open(os.path.join(folder, "lib", version, "site-packages", "_windlass.pth"), "w") as file:
    file.writelines(f"import site; site.addsitedir({path!r})\\n" for path in below)
if os.path.exists(config := os.path.join(sys.prefix, "pip.conf")):
    os.symlink(config, os.path.join(folder, "pip.conf"))
bin = os.path.join(folder, "bin")
with open(os.path.join(bin, "_pip.py"), "w") as file:
    file.write("import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)\\n")
for name in ("pip", "pip3"):
    with open(path := os.path.join(bin, name), "w") as file:
        file.write('#!/bin/sh\\nexec "${0%/*}/python" "${0%/*}/_pip.py" "$@"\\n')
    os.chmod(path, 0o755)
"""
# The second copies the metadata of the image's packages into the overlay, so that uv sees them as installed.
_LEND = """
import sys
sys.path = [path for path in sys.path if path]
import importlib.metadata, os, re
site, mark = sys.argv[1:]
def known(name): return re.sub("[-_.]+", "-", name).lower()
own = {known(name.split("-")[0]) for name in os.listdir(site) if name.endswith(".dist-info")}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if not name or known(name) in own:
        continue
    own.add(known(name))
    lent = "%s-%s.dist-info" % (re.sub("[-_.]+", "_", name), distribution.version)
    os.mkdir(os.path.join(site, lent))
    about = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    files = {"METADATA": about, "INSTALLER": mark}
    files["RECORD"] = "".join(f"{lent}/{file},,\\n" for file in (*files, "RECORD"))
    for file, text in files.items():
        with open(os.path.join(site, lent, file), "w", encoding="utf-8") as out:
            out.write(text)
"""
Emit = Callable[[str], None]
Plain = Mapping[str, Any]  # record of a finished step in STEPS_FILE

STEPS_FILE = "steps.json"
TIMEOUT_S = 3600.0
_PASSWORD = re.compile(r"(://)[^/@\s]+@")
_KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Exit code and last output lines of a command."""

    code: int
    tail: str
    is_late: bool = False


class _Lines:
    """Splitter that reports each line of the output once, up to a maximum number of lines."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._rest = b""
        self._num_lines = 0
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data.replace(b"\r", b"\n")).split(b"\n")
        if len(self._rest) > _MAX_REST:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._report(line)

    def finish(self) -> None:
        self._report(self._rest)
        if self._num_lines > _MAX_LINES:
            self._emit(f"... {self._num_lines - _MAX_LINES} more lines")

    def _report(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        for start in range(0, len(text), _MAX_LINE):
            piece = text[start : start + _MAX_LINE]
            self.tail.append(piece)
            self._num_lines += 1
            if self._num_lines <= _MAX_LINES:
                self._emit(piece)


async def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    emit: Callable[[str], None],
    timeout_s: float,
) -> Ended:
    """Run `argv` and return its exit code as a shell reports it, or -1 if there is none."""
    output, out = os.pipe()
    status, status_out = os.pipe()
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", _SHELL, "sh", cwd, *argv],
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, status_out, _STATUS_FD),
        ],
        setsid=True,
    )
    for end in (out, status_out):
        os.close(end)
    lines = _Lines(emit)
    reading = asyncio.ensure_future(_read(output, lines.add))
    code = b""
    try:
        pieces: list[bytes] = []
        await asyncio.wait_for(_read(status, pieces.append), timeout_s)
        code = b"".join(pieces)
        is_late = False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(reading, _REST_S)
    except asyncio.TimeoutError:
        is_late = True
    finally:
        reading.cancel()
        if not code:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the agent may have reaped it
            os.waitpid(pid, 0)
    lines.finish()
    return Ended(code=int(code or -1), tail="\n".join(lines.tail), is_late=is_late)


async def _read(fd: int, add: Callable[[bytes], None]) -> None:
    """Read until the last writer closes the pipe."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        while data := await reader.read(1 << 16):
            add(data)
    finally:
        transport.close()


class Overlay:
    """Virtual environment of one node in `folder`, on top of the interpreter `python`."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._below = python
        self.python = str(folder / "bin" / "python")

    @property
    def is_made(self) -> bool:
        return Path(self.python).exists() and self._site is not None

    @property
    def _site(self) -> Path | None:
        return next(self.folder.glob("lib/python*/site-packages"), None)

    def make(self) -> list[str]:
        """Return the command that creates the overlay, replacing an existing one."""
        return [self._below, "-c", _MAKE, str(self.folder)]

    def paths(self) -> list[str]:
        """Return the import paths of the overlay, including its editable projects."""
        site = self._site
        if site is None:
            return []
        folders = [str(site)]
        for file in sorted(site.glob("*.pth")):
            lines = file.read_text(errors="replace").splitlines()
            folders += [line for line in lines if line.startswith("/") and Path(line).is_dir()]
        return folders

    def environ(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a step, in which `python` and `pip` are the overlay's."""
        kept = {name: value for name, value in env.items() if name not in _MISLEADING}
        path = env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{path}",
            "VIRTUAL_ENV": str(self.folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def lend(self) -> list[str]:
        """Return the command that makes the image's packages visible to uv."""
        return [self._below, "-c", _LEND, str(self._site), _LENT]

    def take_back(self) -> None:
        """Remove the metadata that `lend` copied, because it is valid only while uv runs."""
        site = self._site
        for mark in site.glob("*.dist-info/INSTALLER") if site else ():
            if mark.read_text(errors="replace") == _LENT:
                shutil.rmtree(mark.parent)

    def pip(self, words: Sequence[str]) -> list[list[str]]:
        """Return the commands that install `words` with pip."""
        # `-m pip` would resolve pip's own imports from the project first
        pip = [self.python, str(self.folder / "bin" / "_pip.py"), "install", "--no-input"]
        pip += ["--progress-bar", "off"]
        wheels = [word for word in words if word.endswith(_WHEEL)]
        # pip compares only the version, which a wheel in development keeps between builds
        reinstall = [[*pip, "--force-reinstall", "--no-deps", *wheels]] if wheels else []
        return [*reinstall, [*pip, *words]]

    def uv(self, uv: str, words: Sequence[str]) -> list[str]:
        """Return the command that installs `words` with uv."""
        wheels = [Path(word).name.partition("-")[0] for word in words if word.endswith(_WHEEL)]
        reinstall = [word for name in wheels for word in ("--reinstall-package", name)]
        return [uv, "pip", "install", "--no-progress", "--python", self.python, *reinstall, *words]

    def find_uv(self, env: Mapping[str, str]) -> str | None:
        """Return the path to uv, or None if uv is missing or would ignore the user's pip settings."""
        settings = {name for name in env if name.startswith("PIP_")} - _HARMLESS
        configs = [Path(name.replace("~", env.get("HOME", "/"), 1)) for name in _CONFIGS]
        configs.append(self.folder / "pip.conf")
        if env.get(_CONFIG) == os.devnull:  # pip then reads no configuration file at all
            settings, configs = settings - {_CONFIG}, []
        if settings or any(path.exists() for path in configs):
            return None
        return shutil.which("uv", path=env.get("PATH"))


async def run_steps(
    steps: Sequence[ImageStep],
    *,
    folder: Path,
    python: str,
    cwd: str,
    env: Mapping[str, str],
    emit: Emit,
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Run the steps that this node has not run yet and return the import paths that ranks put first.

    `emit` receives every line of output as it arrives. Each step may take `timeout_s`.
    """
    make_own(folder)
    async with _locked(folder / "steps.lock", timeout_s):
        overlay = Overlay(folder / "site", python)
        runner = _Runner(overlay, Path(cwd), overlay.environ(env), emit, timeout_s)
        kept = _read_done(folder, python) if overlay.is_made else None
        chain = make_chain(steps, Path(cwd))
        num_kept = _count_common(kept or [], chain)
        _emit_dropped((kept or [])[num_kept:], steps, emit)
        done = (kept or [])[:num_kept]
        started_s = time.monotonic()
        if steps and kept is None:
            await runner.make()
        # before any step runs, so that an interrupted step is not recorded
        _write_done(folder, python, done)
        for number in range(num_kept, len(steps)):
            await runner.run(steps[number], f"step {number + 1} of {len(steps)}")
            done.append({"hash": chain[number], "label": label(steps[number])})
            _write_done(folder, python, done)
        if num_kept < len(steps):
            _emit_image_hint(len(steps) - num_kept, time.monotonic() - started_s, emit)
        return overlay.paths() if steps else []


def label(step: ImageStep) -> str:
    """Return a step as a user would type it, with passwords in URLs masked."""
    text = step.command if isinstance(step, RunStep) else f"pip install {shlex.join(step.packages)}"
    return _PASSWORD.sub(r"\1***@", text)


def make_chain(steps: Sequence[ImageStep], cwd: Path) -> list[str]:
    """Return a hash for each step, computed from its content and that of all earlier steps."""
    digests, last = [], b""
    for step in steps:
        digest = hashlib.sha256(last + json.dumps(to_json(step), sort_keys=True).encode())
        for path in _local_files(step, cwd):
            name = os.path.relpath(path, cwd)  # a symbolic link may lead out of `cwd`
            digest.update(name.encode() + b"\0" + path.read_bytes())
        last = digest.digest()
        digests.append(digest.hexdigest())
    return digests


def _local_files(step: ImageStep, cwd: Path) -> list[Path]:
    """Return the project's files that a pip step names: wheels, requirements and folders."""
    files: list[Path] = []
    last = ""
    for word in step.packages if isinstance(step, PipStep) else ():
        text = word.partition("=")[2] if word.startswith("--") else word.partition("[")[0]
        # pip treats a bare name as a package, even if a folder has that name
        is_value = word.startswith("--") or (last.startswith("-") and "=" not in last)
        is_path = is_value or "/" in text or text.startswith(".")
        path, last = cwd / text, word
        if text and path.resolve().is_relative_to(cwd.resolve()):
            if path.is_file():
                files.append(path)
            elif path.is_dir() and is_path:
                files += _find_files(path)
    return files


def _find_files(folder: Path) -> list[Path]:
    files = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_noise = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not is_noise:
            files.append(path)
    return files


def _read_done(folder: Path, python: str) -> list[dict[str, str]] | None:
    """Return the steps that ran here, or None if they ran for another interpreter or are unknown."""
    try:
        kept = json.loads((folder / STEPS_FILE).read_bytes())
        is_same = kept["python"] == os.path.realpath(python)
        return list(kept["done"]) if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_done(folder: Path, python: str, done: Sequence[Plain]) -> None:
    kept = {"python": os.path.realpath(python), "done": done}
    write_atomically(folder / STEPS_FILE, json.dumps(kept, indent=1).encode())


def _count_common(done: Sequence[Plain], chain: Sequence[str]) -> int:
    hashes = [step["hash"] for step in done]
    pairs = zip(hashes, chain, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(hashes), len(chain)))


def _emit_dropped(gone: Sequence[Plain], steps: Sequence[ImageStep], emit: Emit) -> None:
    requested = {label(step) for step in steps}
    for step in gone:
        if step["label"] not in requested:
            emit(f"no longer a step: {step['label']}; its effects stay on this node until replaced")


def _emit_image_hint(num_run: int, took_s: float, emit: Emit) -> None:
    count = "1 step" if num_run == 1 else f"{num_run} steps"
    emit(
        f"{count} took {took_s:.1f} s and will run on every new node. To avoid that, build an image:"
    )
    emit("`windlass image FILE.py` prints its Dockerfile")


@contextlib.asynccontextmanager
async def _locked(path: Path, timeout_s: float) -> AsyncIterator[None]:
    """Hold the lock of the overlay, which nodes on one machine share."""
    with path.open("w") as file:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise StepFailed(
                        f"another agent has been running steps in {path.parent} for {timeout_s:g} s",
                        hint="run `windlass ls` to list the jobs on this machine",
                    ) from None
                await asyncio.sleep(0.05)
        yield


class _Runner:
    """Runner that executes single steps in one overlay."""

    def __init__(
        self, overlay: Overlay, cwd: Path, env: dict[str, str], emit: Emit, timeout_s: float
    ) -> None:
        self._overlay = overlay
        self._cwd = cwd
        self._env = env
        self._emit = emit
        self._timeout_s = timeout_s

    async def make(self) -> None:
        ended = await self._command(self._overlay.make())
        if ended.code != 0:
            raise self._failed("creating the overlay", "python -m venv", ended)

    async def run(self, step: ImageStep, which: str) -> None:
        self._emit(f"{which}: {label(step)}")
        if isinstance(step, PipStep):
            ended = await self._install(list(step.packages))
        else:
            ended = await self._command(["/bin/sh", "-c", step.command])
        if ended.code != 0:
            raise self._failed(which, label(step), ended, kind=step.kind)

    async def _install(self, words: list[str]) -> Ended:
        uv = self._overlay.find_uv(self._env)
        if uv is not None:
            ended = await self._install_with_uv(uv, words)
            if ended.code == 0:
                return ended
            self._emit("uv failed; trying pip")
        for command in self._overlay.pip(words):
            ended = await self._command(command)
            if ended.code != 0:
                break
        return ended

    async def _install_with_uv(self, uv: str, words: list[str]) -> Ended:
        self._overlay.take_back()  # left by an agent that was killed
        try:
            ended = await self._command(self._overlay.lend())
            if ended.code == 0:
                ended = await self._command(self._overlay.uv(uv, words))
            return ended
        finally:
            self._overlay.take_back()

    async def _command(self, argv: list[str]) -> Ended:
        return await run_command(
            argv, cwd=str(self._cwd), env=self._env, emit=self._emit, timeout_s=self._timeout_s
        )

    def _failed(self, which: str, text: str, ended: Ended, kind: str = "") -> StepFailed:
        if ended.is_late:
            how = f"did not finish within {self._timeout_s:g} s"
        else:
            how = f"exit code {ended.code}"
        hint = "run it manually in the image for details"
        if ended.code == _KILLED:
            hint = "it was killed, probably because it ran out of memory; request more memory for the compute"
        elif "No module named pip" in ended.tail:
            hint = "the image has neither pip nor uv; add one, or use another image"
        elif kind == "pip":
            hint = (
                "check name, version and index; without a network, install a wheel of the project: "
            )
            hint += 'pip_install(["./wheels/NAME.whl"])'
        return StepFailed(f"{which}, {text}: {how}\n{ended.tail}".rstrip(), hint=hint)
