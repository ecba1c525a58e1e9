"""Lost nodes of a job on this machine: kill the remains of one, and start another in its place.

In a cluster, Kubernetes replaces lost nodes. On this machine the lead does. It can kill processes, so it
need not wait for them to end.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

from windlass import processes
from windlass.agent.agent_context import AgentContext
from windlass.wire.messages.agents import StartNode
from windlass.wire.start_order import send_order

logger = logging.getLogger(__name__)


class LocalNodes:
    """Agents of one job's followers."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._pids: dict[int, int] = {}

    def joined(self, index: int, pid: int) -> None:
        """Record the process ID of a node's agent."""
        self._pids[index] = pid

    def end(self, index: int) -> None:
        """Kill a silent agent and all processes below it."""
        pid = self._pids.pop(index, 0)
        if pid:
            processes.kill_descendants(pid)
            processes.kill(pid, signal.SIGKILL)

    def replace(self, index: int) -> None:
        """Start another agent for a node. If that fails, log it, and the lead keeps waiting for the node."""
        context = self._context
        log = context.folder.agent_log(index)
        order = StartNode(
            node=index,
            plan=str(context.folder.plan),
            run_dir=str(context.run_dir),
            log=str(log),
            hidden={},  # the new agent inherits them in its environment
        )
        ours, theirs = socket.socketpair()
        try:
            with ours, theirs, processes.not_reaping():
                _spawn(theirs.fileno(), str(log))
                send_order(ours, order, [])
        except OSError as error:
            logger.warning("node %s cannot be replaced: %s", index, error)
        else:
            logger.info("another agent was started as node %s", index)


def _spawn(control_fd: int, log: str) -> None:
    """Start an agent through a process that exits immediately, so that the system adopts the agent.

    The lead kills all of its own child processes at the end of an attempt.
    """
    argv = [sys.executable, "-I", "-S", sys.argv[0], "replacement", str(control_fd)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        (os.POSIX_SPAWN_DUP2, control_fd, control_fd),
    ]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    os.waitpid(pid, 0)
