"""The programs of a node: `agent`, `replacement` or, in a pod, `pod`; `forkserver`, `rank` and `callee`.

    python agent.pyz agent FD [GUESS...]     FD: where its order comes from
    python agent.pyz replacement FD          starts an agent that is not its child
    python agent.pyz pod                     finds its place and its plan in the pod

Imports as little as it can before the fork server is on its way: importing torch is what takes the time.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import NoReturn

    from windlass.agent.forkserver.fork_server import RankPrograms


def run_agent(order_fd: str, *guess: str) -> int:
    """One agent per node; it learns which node it is from its order.

    `guess`, if any, starts the fork server at once: both ends of its socket, what to import, variables.
    """
    import os

    if guess:
        from windlass.agent.fork_server_start import spawn_server

        ours, theirs, modules, *variables = guess
        preload = modules.split(",")
        env = {**os.environ, **dict(word.split("=", 1) for word in variables)}
        pid = spawn_server(int(theirs), preload, env)

    from windlass.agent.fork_server_client import ForkServer
    from windlass.wire.start_order import receive_order

    forks = ForkServer()
    if guess:
        forks.adopt(_take_socket(ours), pid, preload, env)
    control = _take_socket(order_fd)
    received = receive_order(control)
    if received is None:
        forks.close()
        return 1
    order, _lock = received  # an open descriptor: held as long as this process lives
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)

    from windlass.agent.agent_process import main

    return main(order, forks, control)


def run_replacement(order_fd: str) -> int:
    """Start an agent in a session of its own, and leave it alone."""
    import os

    argv = [sys.executable, "-I", "-S", sys.argv[0], "agent", order_fd]
    os.posix_spawn(argv[0], argv, os.environ, setsid=True)
    return 0


def _take_socket(fd: str) -> socket.socket:
    """A socket that was inherited, and is not to be inherited further."""
    import socket

    taken = socket.socket(fileno=int(fd))
    taken.set_inheritable(False)
    return taken


def run_rank(plan_path: str, rank: str, attempt: str) -> NoReturn:
    """One rank in a fresh interpreter, for `--start spawn`."""
    from windlass.agent.forkserver.fork_server import load_job
    from windlass.agent.rank_process import leave, prepare

    prepare()
    leave(load_programs().enter_work(*load_job(plan_path), rank=int(rank), attempt=int(attempt)))


def run_callee(fd: str, about: str) -> NoReturn:
    """The same for a rank that takes calls."""
    import json

    from windlass.agent.rank_process import leave, prepare
    from windlass.wire.messages.forkserver import CallRankSetup

    prepare()
    leave(load_programs().enter_callee(int(fd), CallRankSetup.read(json.loads(about))))


def load_programs() -> RankPrograms:
    """What a rank does; the fork server imports it after what it imports ahead."""
    from windlass.agent.rank import rank_main

    return rank_main


def main() -> int:
    """Which program this process is."""
    program, *args = sys.argv[1:] or [""]
    if program == "agent":
        return run_agent(*args)
    if program == "replacement":
        return run_replacement(*args)
    if program == "pod":
        from windlass.agent.pod_process import run_pod

        run_pod()
    if program == "forkserver":
        from windlass.agent.forkserver.fork_server import serve

        serve(int(args[0]), args[1].split(",") if args[1] else [], load_programs)
    if program == "rank":
        run_rank(*args)
    if program == "callee":
        run_callee(*args)
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main())
