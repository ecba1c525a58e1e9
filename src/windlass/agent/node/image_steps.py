"""The steps of an image, run on a node: what has not been run yet, in order, before ranks start.

A step is known by its own content, that of the local files it names, and all steps before it. What was run
is kept in `steps.json`; a step that failed is run again next time. Where a step was changed or removed, those
before it stay as they are, it and all after it are run, and what the old one did stays until it is replaced:
a node is no image. A new node starts clean.
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
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.agent.node.overlay import Overlay
from windlass.agent.node.shell import Ended, run_command
from windlass.errors import StepFailed
from windlass.records import to_json
from windlass.spec.image_step import ImageStep, PipStep, RunStep
from windlass.trusted import make_own
from windlass.wire.job_folder import write_atomically

Say = Callable[[str], None]
Plain = Mapping[str, Any]  # what was run, as it is kept

STEPS_FILE = "steps.json"
TIMEOUT_S = 3600.0
_PASSWORD = re.compile(r"(://)[^/@\s]+@")
_KILLED = 137


async def run_steps(
    steps: Sequence[ImageStep],
    *,
    folder: Path,
    python: str,
    cwd: str,
    env: Mapping[str, str],
    say: Say,
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Run what this node has not run yet; the import paths to put first for ranks.

    `say` gets every line of output as it comes. Each step has `timeout_s`.
    """
    make_own(folder)
    async with _locked(folder / "steps.lock", timeout_s):
        overlay = Overlay(folder / "site", python)
        runner = _Runner(overlay, Path(cwd), overlay.environ(env), say, timeout_s)
        kept = _read_done(folder, python) if overlay.is_made else None
        chain = make_chain(steps, Path(cwd))
        num_kept = _count_common(kept or [], chain)
        _say_left((kept or [])[num_kept:], steps, say)
        done = (kept or [])[:num_kept]
        started_s = time.monotonic()
        if steps and kept is None:
            await runner.make()
        _write_done(folder, python, done)  # first forgotten, then run: half a step is no step
        for number in range(num_kept, len(steps)):
            await runner.run(steps[number], f"step {number + 1} of {len(steps)}")
            done.append({"hash": chain[number], "label": label(steps[number])})
            _write_done(folder, python, done)
        if num_kept < len(steps):
            _say_faster(len(steps) - num_kept, time.monotonic() - started_s, say)
        return overlay.paths() if steps else []


def label(step: ImageStep) -> str:
    """A step as one would type it; passwords in addresses are left out."""
    text = step.command if isinstance(step, RunStep) else f"pip install {shlex.join(step.packages)}"
    return _PASSWORD.sub(r"\1***@", text)


def make_chain(steps: Sequence[ImageStep], cwd: Path) -> list[str]:
    """What each step is known by: its content and that of all before it."""
    digests, last = [], b""
    for step in steps:
        digest = hashlib.sha256(last + json.dumps(to_json(step), sort_keys=True).encode())
        for path in _local_files(step, cwd):
            name = os.path.relpath(path, cwd)  # which a link may have put elsewhere
            digest.update(name.encode() + b"\0" + path.read_bytes())
        last = digest.digest()
        digests.append(digest.hexdigest())
    return digests


def _local_files(step: ImageStep, cwd: Path) -> list[Path]:
    """Files of the project that a pip step names: wheels, requirements, folders."""
    files: list[Path] = []
    last = ""
    for word in step.packages if isinstance(step, PipStep) else ():
        text = word.partition("=")[2] if word.startswith("--") else word.partition("[")[0]
        # pip takes a bare name for a package, whatever folders there are
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
    """What was run here; None when it was for another interpreter, or nobody can tell."""
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


def _say_left(gone: Sequence[Plain], steps: Sequence[ImageStep], say: Say) -> None:
    asked = {label(step) for step in steps}
    for step in gone:
        if step["label"] not in asked:
            say(f"no longer a step: {step['label']}; what it did stays on this node until replaced")


def _say_faster(num_run: int, took_s: float, say: Say) -> None:
    count = "1 step" if num_run == 1 else f"{num_run} steps"
    say(f"{count} took {took_s:.1f} s here, as on every new node; a built image would not:")
    say("windlass image FILE.py prints its Dockerfile")


@contextlib.asynccontextmanager
async def _locked(path: Path, timeout_s: float) -> AsyncIterator[None]:
    """Nodes that share a machine share what was installed: one at a time."""
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
                        hint="windlass ls shows what runs here",
                    ) from None
                await asyncio.sleep(0.05)
        yield


class _Runner:
    """Runs single steps over one overlay."""

    def __init__(
        self, overlay: Overlay, cwd: Path, env: dict[str, str], say: Say, timeout_s: float
    ) -> None:
        self._overlay = overlay
        self._cwd = cwd
        self._env = env
        self._say = say
        self._timeout_s = timeout_s

    async def make(self) -> None:
        """Make the overlay."""
        ended = await self._command(self._overlay.make())
        if ended.code != 0:
            raise self._failed("a place to install to", "python -m venv", ended)

    async def run(self, step: ImageStep, which: str) -> None:
        """Run one step to its end."""
        self._say(f"{which}: {label(step)}")
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
            self._say("uv could not; pip may")
        for command in self._overlay.pip(words):
            ended = await self._command(command)
            if ended.code != 0:
                break
        return ended

    async def _install_with_uv(self, uv: str, words: list[str]) -> Ended:
        self._overlay.take_back()  # of an agent that was killed in between
        try:
            ended = await self._command(self._overlay.lend())
            if ended.code == 0:
                ended = await self._command(self._overlay.uv(uv, words))
            return ended
        finally:
            self._overlay.take_back()

    async def _command(self, argv: list[str]) -> Ended:
        return await run_command(
            argv, cwd=str(self._cwd), env=self._env, say=self._say, timeout_s=self._timeout_s
        )

    def _failed(self, which: str, text: str, ended: Ended, kind: str = "") -> StepFailed:
        if ended.is_late:
            how = f"was not done in {self._timeout_s:g} s"
        else:
            how = f"exit code {ended.code}"
        hint = "run it by hand in the image to see more"
        if ended.code == _KILLED:
            hint = "it was killed, most likely for its memory: give the compute more"
        elif "No module named pip" in ended.tail:
            hint = "the image has neither pip nor uv: use one that has, or add it to the image"
        elif kind == "pip":
            hint = "look at name, version and index; a node without a network takes a wheel of the project: "
            hint += 'pip_install(["./wheels/NAME.whl"])'
        return StepFailed(f"{which}, {text}: {how}\n{ended.tail}".rstrip(), hint=hint)
