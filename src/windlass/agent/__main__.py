"""Programs of a node: `agent`, `replacement`, `pod`, `forkserver`, `rank` and `callee`.

    python agent.pyz agent FD [GUESS...]     run an agent that receives its order over FD
    python agent.pyz replacement FD          start an agent that replaces a lost one, in a new session
    python agent.pyz pod                     run the agent of a pod, configured by its environment and Secret

Imports as little as possible before the fork server has started, because importing torch takes the most time.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from windlass.agent.forkserver.fork_server import RankPrograms


def run_spawned_rank(plan_path: str, rank: str, attempt: str) -> NoReturn:
    """Run one rank in a fresh interpreter, for `--start spawn`."""
    from windlass.agent.forkserver.fork_server import load_job
    from windlass.agent.rank_process import leave, prepare

    prepare()
    leave(load_programs().enter_work(*load_job(plan_path), rank=int(rank), attempt=int(attempt)))


def run_spawned_callee(fd: str, about: str) -> NoReturn:
    """Run one rank that takes calls in a fresh interpreter."""
    import json

    from windlass.agent.rank_process import leave, prepare
    from windlass.wire.messages.forkserver import CallRankSetup

    prepare()
    leave(load_programs().enter_callee(int(fd), CallRankSetup.read(json.loads(about))))


def load_programs() -> RankPrograms:
    """Import the programs of a rank. The fork server does so after the modules that it preloads."""
    from windlass.agent.rank import rank_main

    return rank_main


def main() -> int:
    """Run the program that the first argument names."""
    program, *args = sys.argv[1:] or [""]
    if program == "agent":
        from windlass.agent.local_agent import run_local_agent

        run_local_agent(*args)
    if program == "replacement":
        from windlass.agent.local_agent import run_replacement

        return run_replacement(*args)
    if program == "pod":
        from windlass.agent.pod_agent import run_pod_agent

        run_pod_agent()
    if program == "forkserver":
        from windlass.agent.forkserver.fork_server import serve

        serve(int(args[0]), args[1].split(",") if args[1] else [], load_programs)
    if program == "rank":
        run_spawned_rank(*args)
    if program == "callee":
        run_spawned_callee(*args)
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main())
