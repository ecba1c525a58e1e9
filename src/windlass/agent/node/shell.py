"""One command run to its end, its output line by line as it comes. For steps; ranks are forked elsewhere.

The exit code comes over a pipe of its own: an agent reaps whatever ends below it, so nobody may wait for a
child by its pid. What a command leaves running in the background does not keep anyone waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_SHELL = 'cd "$1" && shift && "$@" 3>&-; echo $? >&3'
_STATUS_FD = 3
_MAX_LINE = 2000
_MAX_LINES = 5000
_MAX_REST = 1 << 16
_TAIL_LINES = 20
_REST_S = 1.0  # for output of a command that has ended while something of it still holds the pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and its last lines."""

    code: int
    tail: str
    is_late: bool = False


class _Lines:
    """Output cut into lines, each told once, with a bound on all of it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rest = b""
        self._num_said = 0
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data.replace(b"\r", b"\n")).split(b"\n")
        if len(self._rest) > _MAX_REST:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._tell(line)

    def finish(self) -> None:
        self._tell(self._rest)
        if self._num_said > _MAX_LINES:
            self._say(f"... {self._num_said - _MAX_LINES} more lines")

    def _tell(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        for start in range(0, len(text), _MAX_LINE):
            piece = text[start : start + _MAX_LINE]
            self.tail.append(piece)
            self._num_said += 1
            if self._num_said <= _MAX_LINES:
                self._say(piece)


async def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    say: Callable[[str], None],
    timeout_s: float,
) -> Ended:
    """Run `argv`; its exit code as a shell gives it, -1 when there was none to be had."""
    output, out = os.pipe()
    status, told = os.pipe()
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", _SHELL, "sh", cwd, *argv],
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, told, _STATUS_FD),
        ],
        setsid=True,
    )
    for end in (out, told):
        os.close(end)
    lines = _Lines(say)
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
    """Everything that comes, until the last writer has gone."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        while data := await reader.read(1 << 16):
            add(data)
    finally:
        transport.close()
