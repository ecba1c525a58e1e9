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
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.node.forkserver_client import ForkServer
    from windlass.agent.place import NodePlace
    from windlass.wire.job_folder import JobFolder


def run_pod() -> NoReturn:
    """Be the agent of this pod."""
    # a first process has no default: without this a pod could not be ended before its loop runs
    signal.signal(signal.SIGTERM, lambda *_: os._exit(names.EXIT_TOLD_TO_STOP))
    secret = Path(names.SECRET_FOLDER)
    text = (secret / names.PLAN_FILE).read_bytes()
    plan = json.loads(text)
    if _stays_up():
        _stay_if_ended(plan)
    forks = _start_forks(plan)

    from windlass.agent.agent_process import start_logging
    from windlass.agent.node.processes import become_subreaper
    from windlass.agent.pod_folder import open_pod_folder

    folder, num_before = open_pod_folder(text)
    start_logging()
    become_subreaper()
    context = _make_context(secret, folder, num_before)
    import asyncio

    asyncio.run(_run(context, forks, _read_ttl(plan)))


def _stays_up() -> bool:
    return os.environ.get(names.ENV_STAYS_UP) == "1"


def _read_ttl(plan: dict[str, Any]) -> float | None:
    """How long a job is kept after its end; None: for ever."""
    ttl_s: float | None = (plan["pod"] or {}).get("ttl_s")
    return ttl_s


def _start_forks(plan: dict[str, Any]) -> ForkServer:
    from windlass.agent.forkserver.spawn import spawn_server

    env = {**os.environ, **plan["env"]}
    ours, theirs = socket.socketpair()
    pid = spawn_server(theirs.detach(), plan["preload"], env)

    from windlass.agent.node.forkserver_client import ForkServer

    forks = ForkServer()
    forks.adopt(ours, pid, plan["preload"], env)
    return forks


def _find_place() -> NodePlace:
    from windlass.agent.place import find_place
    from windlass.errors import EngineError

    try:
        return find_place(os.environ, socket.gethostname())
    except EngineError as error:
        sys.stderr.write(f"windlass: {error}\n")
        sys.stderr.flush()
        os._exit(1)


async def _run(context: AgentContext, forks: ForkServer, ttl_s: float | None) -> NoReturn:
    import contextlib
    import time

    from windlass.agent.agent_process import run_agent
    from windlass.agent.lead.termination import leave_last_word
    from windlass.agent.node.inputs import Inputs
    from windlass.agent.node.pod_log_writer import PodLogWriter
    from windlass.agent.pod_folder import mark_end

    folder = context.folder
    inputs = Inputs(context.plan, folder)
    inputs.find(Path(names.SECRET_FOLDER))
    log = PodLogWriter()

    def last_word(leading: LeadAgent) -> None:
        leave_last_word(leading.status_writer.status, folder, log)

    async def stay() -> None:
        from windlass.agent.stay_up import stay_up

        mark_end(folder)
        log.finish(b"")
        here = _make_listening_place() if context.index == 0 else None
        await stay_up(folder, context.plan.job_id, lead=here, ended_at_s=time.time(), ttl_s=ttl_s)

    code = await run_agent(
        context,
        forks,
        inputs,
        echo=log.add,
        at_end=last_word,
        stay=stay if _stays_up() else None,
    )
    with contextlib.suppress(OSError, ValueError):
        log.finish(b"")
        sys.stderr.flush()
    os._exit(code)  # all is said: nothing that is left in the loop may keep the pod


def _stay_if_ended(plan: dict[str, Any]) -> None:
    """Where the job ended before this container was started, stay until the pod is removed, and exit."""
    from windlass.agent.pod_folder import find_end, pod_folder

    folder = pod_folder()
    ended_at_s = find_end(folder)
    if ended_at_s is None:
        return
    import asyncio

    from windlass.agent.agent_process import start_logging
    from windlass.agent.stay_up import stay_up

    start_logging()
    here = _make_listening_place() if _find_place().index == 0 else None
    ttl_s = _read_ttl(plan)
    asyncio.run(stay_up(folder, plan["job_id"], lead=here, ended_at_s=ended_at_s, ttl_s=ttl_s))
    os._exit(0)


def _make_listening_place() -> TlsPlace:
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.link.tls import server_context

    context = server_context(Path(names.SECRET_FOLDER))
    return TlsPlace(host="", port=names.AGENT_PORT, context=context)


def _make_context(secret: Path, folder: JobFolder, num_before: int) -> AgentContext:
    from windlass.agent.agent_context import AgentContext
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.link.tls import client_context
    from windlass.plan.plan import read_plan

    place = _find_place()
    lead = TlsPlace(host=place.lead, port=names.AGENT_PORT, context=client_context(secret))
    uid = os.environ[names.POD_UID]
    return AgentContext(
        plan=read_plan(folder.plan.read_text()),
        folder=folder,
        index=place.index,
        run_dir=folder.path / "run",
        place=lead if place.index else _make_listening_place(),
        successor=None if place.index else lead,
        is_pod=True,
        address=os.environ[names.POD_IP],
        host=os.environ.get(names.K8S_NODE, ""),
        # another container of the same pod remembers nothing: it is another agent
        incarnation=f"{uid}-{num_before}" if num_before else uid,
        num_losses=place.num_losses + num_before,
    )
