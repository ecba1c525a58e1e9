"""The three programs of a node: `agent`, `forkserver` and `rank`.

    python agent.pyz agent PLAN.json NODE RUN_DIR

Imports as little as it can before the fork server is on its way: importing torch is what takes the time.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run_agent(plan_path: str, node: str, run_dir: str, *fds: str) -> int:
    """One agent a node; the fork server first.

    The lead may be handed two descriptors: the lock that it holds for life, and the end of a pipe whose
    other end closes when its client dies.
    """
    import json
    import os

    from windlass.agent.forks import ForkServer

    for fd in fds:
        os.set_inheritable(int(fd), False)
    with open(plan_path) as file:
        text = file.read()
    forks = ForkServer(plan_path, {**os.environ, **json.loads(text)["env"]})

    import logging
    from pathlib import Path

    from windlass.agent import agent
    from windlass.plan.plan import read_plan
    from windlass.wire.folder import JobFolder

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    plan = read_plan(text)
    return agent.main(
        plan, JobFolder(Path(plan_path).parent), int(node), Path(run_dir), forks, fds[1:]
    )


def run_rank(plan_path: str, rank: str, attempt: str) -> NoReturn:
    """One rank in a fresh interpreter, for `--start spawn`."""
    from pathlib import Path

    from windlass.agent.forkserver import enter_python
    from windlass.plan.plan import read_plan
    from windlass.wire.folder import JobFolder

    plan = read_plan(Path(plan_path).read_text())
    enter_python(plan, JobFolder(Path(plan_path).parent), rank=int(rank), attempt=int(attempt))


def main() -> int:
    """Which program this process is."""
    program, *args = sys.argv[1:] or [""]
    if program == "agent":
        return run_agent(*args)
    if program == "forkserver":
        from windlass.agent.forkserver import serve

        serve(int(args[0]), args[1])
    if program == "rank":
        run_rank(*args)
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main())
