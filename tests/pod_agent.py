"""An agent of any node in a process of its own, as a pod's is, but on this machine: run by `severed`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.agent_process import prepare_forks, run_agent, start_logging
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.lead import lead_server
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.silence_limits import SilenceLimits
from windlass.plan.plan import read_plan
from windlass.processes import become_subreaper
from windlass.wire.job_folder import JobFolder
from windlass.wire.tls import client_context, server_context


def main(about: dict) -> None:
    sys.argv[0] = about["archive"]  # what fork servers are started from
    lead_server.HEARTBEAT_S = about["heartbeat_s"]
    names.FEWER_AFTER_S = about["fewer_after_s"]
    start_logging()
    become_subreaper()
    folder = JobFolder(Path(about["folder"]))
    plan = read_plan(folder.plan.read_text())
    files = Path(about["certificates"])
    lead = TlsPlace(host="127.0.0.1", port=about["lead_port"], context=client_context(files))
    here = TlsPlace(host="127.0.0.1", port=about["own_port"], context=server_context(files))
    is_lead = about["index"] == 0
    agent_context = AgentContext(
        plan=plan,
        folder=folder,
        index=about["index"],
        run_dir=folder.path / "run",
        place=here if is_lead else lead,
        successor=lead if is_lead else None,
        is_pod=True,
        address="127.0.0.1",
        incarnation=about["name"],
        num_losses=about["num_losses"],
        sight=SilenceLimits(**about["sight"]),
    )
    forks = ForkServer()
    prepare_forks(plan, forks)
    asyncio.run(run_and_leave(agent_context, forks))


async def run_and_leave(agent_context: AgentContext, forks: ForkServer) -> NoReturn:
    """Exit from within the loop, as agents do: while a loop closes, a signal prints a traceback."""
    inputs = Inputs(agent_context.plan, agent_context.folder)
    code = await run_agent(agent_context, forks, inputs)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
