"""The three programs of a node: `agent`, `forkserver` and `rank`.

    python agent.pyz agent FD [GUESS]     FD: where its order comes from

Imports as little as it can before the fork server is on its way: importing torch is what takes the time.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run_agent(order_fd: str, *guess: str) -> int:
    """One agent a node. `guess`, if any, is what to import, and variables: the fork server starts at once."""
    import os
    import socket

    from windlass.agent.forks import ForkServer
    from windlass.agent.orders import receive_order

    control = socket.socket(fileno=int(order_fd))
    os.set_inheritable(control.fileno(), False)
    forks = ForkServer()
    if guess:
        variables = dict(word.split("=", 1) for word in guess[1:])
        forks.start(guess[0].split(","), {**os.environ, **variables})
    received = receive_order(control)
    if received is None:
        forks.close()
        return 1
    order, _lock = received  # an open descriptor: held as long as this process lives
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)

    from windlass.agent.agent import main

    return main(order, forks, control)


def run_rank(plan_path: str, rank: str, attempt: str) -> NoReturn:
    """One rank in a fresh interpreter, for `--start spawn`."""
    from windlass.agent.forkserver import enter_python, load_job

    enter_python(*load_job(plan_path), rank=int(rank), attempt=int(attempt))


def main() -> int:
    """Which program this process is."""
    program, *args = sys.argv[1:] or [""]
    if program == "agent":
        return run_agent(*args)
    if program == "forkserver":
        from windlass.agent.forkserver import serve

        serve(int(args[0]), args[1].split(",") if args[1] else [])
    if program == "rank":
        run_rank(*args)
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main())
