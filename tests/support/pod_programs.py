"""Runs a pod's agent programs as local processes, with folders, ports and limits chosen by the test.

Usage: python pod_programs.py PROGRAM JSON. `agent` is an agent of any node. `container` is the real entry
point of a pod. `follower` only follows, and `lead` only leads.

Imports only Windlass, because interpreters without pytest run this module too.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path
from typing import NoReturn

from windlass import names
from windlass.agent import agent_process, pod_output
from windlass.agent.agent_context import AgentContext
from windlass.agent.agent_process import prepare_forks, run_agent, start_logging
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.link import agent_link
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.node import follower
from windlass.agent.pod_agent import run_pod_agent
from windlass.agent.pod_output import PodLogWriter
from windlass.agent.silence_limits import SilenceLimits
from windlass.plan.plan import read_plan
from windlass.processes import become_subreaper
from windlass.wire.job_folder import JobFolder
from windlass.wire.tls import client_context, server_context


def run_agent_program(about: dict) -> None:
    sys.argv[0] = about["archive"]  # fork servers are started from this file
    agent_link.HEARTBEAT_S = about["heartbeat_s"]
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
        limits=SilenceLimits(**about["limits"]),
    )
    forks = ForkServer()
    prepare_forks(plan, forks)
    asyncio.run(run_agent_and_exit(agent_context, forks))


async def run_agent_and_exit(agent_context: AgentContext, forks: ForkServer) -> NoReturn:
    """Run an agent and exit from within the loop, as agents do.

    While a loop is closing, a signal would print a traceback.
    """
    inputs = Inputs(agent_context.plan, agent_context.folder)
    code = await run_agent(agent_context, forks, inputs)
    sys.stderr.flush()
    os._exit(code)


def run_container(about: dict) -> None:
    sys.argv[0] = about["archive"]  # fork servers are started from this file
    names.SECRET_FOLDER = names.FILES_FOLDER = about["secret"]
    names.JOB_FOLDER = about["folder"]
    names.HOME_FOLDER = f"{about['folder']}/home"
    names.AGENT_PORT = about["port"]
    pod_output._MESSAGE_FILE = Path(about["message"])
    agent_process._FIRST_READER_S = 0.1
    run_pod_agent()


def run_follower(about: dict) -> int:
    sys.argv[0] = about["archive"]  # fork servers are started from this file
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
        limits=SilenceLimits(**about.get("limits", {})),
    )
    forks = ForkServer()
    prepare_forks(plan, forks)
    return asyncio.run(run_agent(agent_context, forks, Inputs(plan, folder)))


async def lead_to_the_end(agent_context: AgentContext, forks: ForkServer) -> int:
    log = PodLogWriter()

    async def finish(agent: agent_process.Agent, code: int) -> int:
        if isinstance(agent, agent_process.LeadAgent) and agent.has_ended:
            pod_output.write_last_word(agent.status_writer.status, agent_context.folder, log)
        return code

    inputs = Inputs(agent_context.plan, agent_context.folder)
    return await run_agent(agent_context, forks, inputs, echo=log.add, finish=finish)


def run_lead(about: dict) -> int:
    sys.argv[0] = about["archive"]  # fork servers are started from this file
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
    code = asyncio.run(lead_to_the_end(agent_context, forks))
    sys.stderr.flush()
    os._exit(code)


def make_command(program: str, about: dict, *, python: str = sys.executable) -> list[str]:
    """Return the command that runs one of these programs."""
    return [python, __file__, program, json.dumps(about)]


PROGRAMS = {
    "agent": run_agent_program,
    "container": run_container,
    "follower": run_follower,
    "lead": run_lead,
}

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](json.loads(sys.argv[2])))
