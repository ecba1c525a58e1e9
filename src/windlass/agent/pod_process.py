"""The agent's process in a pod: its place from its surroundings, its plan from the job's Secret.

Starts the fork server before all else, since importing torch is what takes the time. Leaves the job's
last word in the pod's log and a sentence in its termination message: pods may not speak to the API
server.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from windlass import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from windlass.agent.agent_context import AgentContext
    from windlass.agent.agent_process import LeadAgent
    from windlass.agent.node.forkserver_client import ForkServer
    from windlass.wire.job_folder import JobFolder


def run_pod() -> NoReturn:
    """Be the agent of this pod."""
    # a first process has no default: without this a pod could not be ended before its loop runs
    signal.signal(signal.SIGTERM, lambda *_: os._exit(names.EXIT_TOLD_TO_STOP))
    secret = Path(names.SECRET_FOLDER)
    text = (secret / names.PLAN_FILE).read_bytes()
    forks = _start_forks(json.loads(text))
    folder = _make_folder(text)

    from windlass.agent.agent_process import start_logging
    from windlass.agent.node.processes import become_subreaper

    start_logging()
    become_subreaper()
    import asyncio

    asyncio.run(_run(secret, folder, forks))


def _start_forks(plan: dict[str, Any]) -> ForkServer:
    from windlass.agent.forkserver.spawn import spawn_server

    env = {**os.environ, **plan["env"]}
    ours, theirs = socket.socketpair()
    pid = spawn_server(theirs.detach(), plan["preload"], env)

    from windlass.agent.node.forkserver_client import ForkServer

    forks = ForkServer()
    forks.adopt(ours, pid, plan["preload"], env)
    return forks


def _make_folder(plan: bytes) -> JobFolder:
    from windlass.wire.job_folder import JobFolder

    folder = JobFolder(Path(names.JOB_FOLDER))
    folder.code.mkdir()
    Path(names.HOME_FOLDER).mkdir()
    folder.plan.write_bytes(plan)
    return folder


async def _run(secret: Path, folder: JobFolder, forks: ForkServer) -> NoReturn:
    import contextlib

    from windlass.agent.agent_process import run_agent
    from windlass.agent.lead.termination import leave_last_word
    from windlass.agent.node.inputs import Inputs
    from windlass.agent.node.pod_log_writer import PodLogWriter

    agent_context = _make_context(secret, folder)
    inputs = Inputs(agent_context.plan, folder)
    inputs.find(secret)
    log = PodLogWriter()

    def last_word(leading: LeadAgent) -> None:
        leave_last_word(leading.status_writer.status, folder, log)

    code = await run_agent(agent_context, forks, inputs, echo=log.add, at_end=last_word)
    with contextlib.suppress(OSError, ValueError):
        log.finish(b"")
        sys.stderr.flush()
    os._exit(code)  # all is said: nothing that is left in the loop may keep the pod


def _make_context(secret: Path, folder: JobFolder) -> AgentContext:
    from windlass.agent.agent_context import AgentContext
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.link.tls import client_context, server_context
    from windlass.agent.place import find_place
    from windlass.plan.plan import read_plan

    plan = read_plan(folder.plan.read_text())
    own = find_place(os.environ, socket.gethostname())
    run_dir = Path(names.JOB_FOLDER) / "run"
    run_dir.mkdir(mode=0o700)
    lead = TlsPlace(host=own.lead, port=names.AGENT_PORT, context=client_context(secret))
    here = TlsPlace(host="", port=names.AGENT_PORT, context=server_context(secret))
    return AgentContext(
        plan=plan,
        folder=folder,
        index=own.index,
        run_dir=run_dir,
        place=lead if own.index else here,
        successor=None if own.index else lead,
        is_pod=True,
        address=os.environ[names.POD_IP],
        host=os.environ.get(names.K8S_NODE, ""),
        incarnation=os.environ[names.POD_UID],
        num_losses=own.num_losses,
    )
