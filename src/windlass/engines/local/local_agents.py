"""Agent processes on this machine, and the head start that hides their start-up time.

An agent receives its order only after it has started. `windlass run` can therefore start the lead's agent
before it has parsed the command line. It guesses what the agent's fork server should import, so that torch
loads meanwhile. After a wrong guess the agent restarts its fork server, at no other cost. This module
deliberately imports little.
"""

from __future__ import annotations

import os
import re
import socket
import sys

from windlass import names
from windlass.engines.archives import find_archive
from windlass.wire.start_order import send_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from windlass.wire.messages.agents import StartNode

# Options that change the fork server. With these, no guess is made.
_NO_GUESS = re.compile(
    r"--(env|python|preload|start|engine|framework|gpus|pretend-gpus|dry-run|help)(=|\Z)|-(e|h)\b|--?\Z|-m\Z"
)
_MENTIONS_TORCH = re.compile(rb"^[ \t]*(import|from)[ \t][^#\n]*\btorch\b", re.MULTILINE)
# Probable assignment of a variable that must be set before torch is imported.
_SETS_VARIABLE = re.compile(
    rb"environ(\[[^\]\n]+\][ \t]*=[^=]|\.(setdefault|update|pop)\()|\bputenv\(|load_dotenv\("
)
_MAX_SCRIPT_BYTES = 1 << 20


_started: list[int] = []  # agents are children of this process until they exit


def reap_agents() -> None:
    """Reap agents that have exited. Called whenever a client reads its jobs."""
    for pid in _started[:]:
        try:
            has_ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            has_ended = True
        if has_ended and pid in _started:
            _started.remove(pid)


class AgentProcess:
    """Agent process that waits for its order."""

    def __init__(
        self, command: Sequence[str], *, log: str = os.devnull, guess: Sequence[str] = ()
    ) -> None:
        self._control, theirs = socket.socketpair()
        inherited = [theirs, *(socket.socketpair() if guess else ())]
        fds = [end.fileno() for end in inherited]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            # Duplicated onto itself, so that only this child inherits it, not those of other threads.
            *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds),
        ]
        argv = [*command, "agent", *(str(fd) for fd in fds), *guess]
        env = {names.IMPORT_CACHE: os.path.dirname(command[-1]), **os.environ}
        self.pid = os.posix_spawn(argv[0], argv, env, file_actions=actions, setsid=True)
        for end in inherited:
            end.close()
        _started.append(self.pid)

    def order(self, order: StartNode, fds: Sequence[int] = ()) -> None:
        """Send the agent its order."""
        send_order(self._control, order, list(fds))

    def let_go(self) -> None:
        """Close this end. An agent without an order exits, and a lead loses this lease."""
        self._control.close()


def make_command(python: str, archive: str) -> list[str]:
    """Return the command of an agent, which runs isolated and without site-packages."""
    return [python, "-I", "-S", archive]


_head_start: AgentProcess | None = None


def begin_head_start(argv: Sequence[str]) -> None:
    """Start the lead's agent for `windlass run ARGV` now, if a safe guess is possible."""
    global _head_start
    archive = find_archive()
    guess = make_guess(argv)
    if archive is not None and guess is not None:
        _head_start = AgentProcess(make_command(sys.executable, archive), guess=guess)


def take_head_start(python: str, archive: str) -> AgentProcess | None:
    """Return the agent of the head start, if it has this interpreter and archive."""
    global _head_start
    started, _head_start = _head_start, None
    if started is not None and (python != sys.executable or archive != find_archive()):
        started.let_go()
        return None
    return started


def make_guess(argv: Sequence[str]) -> list[str] | None:
    """Guess the preload and the variables of the fork server, or return None if that is not safe."""
    before = argv[: argv.index("--")] if "--" in argv else argv
    script = next((word for word in before if word.partition("::")[0].endswith(".py")), None)
    if (
        script is None
        or any(_NO_GUESS.match(word) for word in before)
        or not _mentions_torch(script)
    ):
        return None
    many = _num_procs(before) > 1 and names.OMP_NUM_THREADS not in os.environ
    return ["torch", *([f"{names.OMP_NUM_THREADS}=1"] if many else [])]


def _num_procs(argv: Sequence[str]) -> int:
    text = " ".join(argv)
    procs = re.search(r"--procs[= ](\d+)", text)
    return int(procs[1] if procs else os.environ.get("WINDLASS_PROCS") or 1)


def _mentions_torch(script: str) -> bool:
    try:
        with open(script.partition("::")[0], "rb") as file:
            source = file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return False
    mention = _MENTIONS_TORCH.search(source)
    return mention is not None and _SETS_VARIABLE.search(source, 0, mention.start()) is None
