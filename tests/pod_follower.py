"""A follower in a process of its own, as a pod's agent is, but on this machine: run by `pod_places`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from windlass.agent.agent_context import AgentContext
from windlass.agent.agent_process import prepare_forks, run_agent, start_logging
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.node import follower
from windlass.agent.silence_limits import SilenceLimits
from windlass.plan.plan import read_plan
from windlass.processes import become_subreaper
from windlass.wire.job_folder import JobFolder
from windlass.wire.tls import client_context


def main(about: dict) -> int:
    sys.argv[0] = about["archive"]  # what fork servers are started from
    for name, value in about["constants"].items():
        setattr(follower, name, value)
    start_logging()
    become_subreaper()
    folder = JobFolder(Path(about["folder"]))
    plan = read_plan(folder.plan.read_text())
    context = client_context(Path(about["certificates"]))
    agent_context = AgentContext(
        plan=plan,
        folder=folder,
        index=about.get("index", 1),
        run_dir=folder.path / "run",
        place=TlsPlace(host="127.0.0.1", port=about["port"], context=context),
        is_pod=True,
        address="127.0.0.1",
        host="rack-7",
        given_by=about.get("given_by", ""),
        sight=SilenceLimits(**about.get("sight", {})),
    )
    forks = ForkServer()
    prepare_forks(plan, forks)
    return asyncio.run(run_agent(agent_context, forks, Inputs(plan, folder)))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
