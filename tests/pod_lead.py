"""A lead in a process of its own, as node 0's agent in a pod is, but here: run by `test_leaving`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path

from windlass.agent import agent_process, pod_output
from windlass.agent.agent_context import AgentContext
from windlass.agent.agent_process import prepare_forks, run_agent, start_logging
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.pod_output import PodLogWriter
from windlass.plan.plan import read_plan
from windlass.processes import become_subreaper
from windlass.wire.job_folder import JobFolder
from windlass.wire.tls import server_context


async def lead(agent_context: AgentContext, forks: ForkServer) -> int:
    log = PodLogWriter()

    def at_end(leading: agent_process.LeadAgent) -> None:
        pod_output.leave_last_word(leading.status_writer.status, agent_context.folder, log)

    inputs = Inputs(agent_context.plan, agent_context.folder)
    return await run_agent(agent_context, forks, inputs, echo=log.add, at_end=at_end)


def main(about: dict) -> int:
    sys.argv[0] = about["archive"]  # what fork servers are started from
    for name, value in about["constants"].items():
        setattr(agent_process, name, value)
    pod_output._MESSAGE_FILE = Path(about["message"])
    start_logging()
    become_subreaper()
    folder = JobFolder(Path(about["folder"]))
    plan = read_plan(folder.plan.read_text())
    context = server_context(Path(about["certificates"]))
    agent_context = AgentContext(
        plan=plan,
        folder=folder,
        index=0,
        run_dir=folder.path / "run",
        place=TlsPlace(host="127.0.0.1", port=about["port"], context=context),
        is_pod=True,
        address="127.0.0.1",
    )
    forks = ForkServer()
    prepare_forks(plan, forks)
    if about["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (about["memory_bytes"], about["memory_bytes"]))
    code = asyncio.run(lead(agent_context, forks))
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
