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
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from windlass.agent.agent_context import AgentContext
    from windlass.agent.agent_process import LeadAgent
    from windlass.agent.fork_server_client import ForkServer
    from windlass.agent.lead_requests import GivenIndex
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.place import NodePlace
    from windlass.agent.pod_output import PodLogWriter
    from windlass.wire.job_folder import JobFolder

_SEEN_S = 6.0  # kubelets tell of a pod's end within two; busy ones take longer


def run_pod() -> NoReturn:
    """Be the agent of this pod."""
    # a first process has no default: without this a pod could not be ended before its loop runs
    signal.signal(signal.SIGTERM, lambda *_: os._exit(names.EXIT_TOLD_TO_STOP))
    text = (Path(names.SECRET_FOLDER) / names.PLAN_FILE).read_bytes()
    plan = json.loads(text)
    environ = dict(os.environ)  # as the engine left it: it tells this agent's place
    for name in environ.get(names.ENV_FORGET, "").split(","):
        os.environ.pop(name, None)
    out = (
        names.POD_OUT
        if os.access(names.POD_OUT, os.W_OK)
        else f"{names.JOB_FOLDER}/{names.OUT_FOLDER}"
    )
    os.environ.setdefault(names.OUT, out)  # the plan's own wins
    if _stays_up():
        _stay_if_ended(plan, environ)
    forks = _start_forks(plan)

    from windlass.agent.agent_process import start_logging
    from windlass.agent.pod_folder import open_pod_folder
    from windlass.processes import become_subreaper

    folder, num_before = open_pod_folder(text)
    start_logging()
    become_subreaper()
    import asyncio

    asyncio.run(_run(plan, folder, forks, environ, num_before))


def _start_forks(plan: dict[str, Any]) -> ForkServer:
    from windlass.agent.fork_server_start import spawn_server

    env = {**os.environ, **plan["env"]}
    ours, theirs = socket.socketpair()
    pid = spawn_server(theirs.detach(), plan["preload"], env)

    from windlass.agent.fork_server_client import ForkServer

    forks = ForkServer()
    forks.adopt(ours, pid, plan["preload"], env)
    return forks


async def _run(
    plan: dict[str, Any],
    folder: JobFolder,
    forks: ForkServer,
    environ: Mapping[str, str],
    num_before: int,
) -> NoReturn:
    from windlass.agent.pod_output import PodLogWriter

    log = PodLogWriter()
    context = await _make_context(folder, environ, num_before)
    if context is not None:
        code = await _run_agent(plan, context, forks, log)
    else:  # the job ended without this one
        forks.close()
        code = 0
        if _stays_up():
            await _stay(plan, folder, is_lead=False)
    try:
        log.finish(b"")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    os._exit(code)  # all is said: nothing that is left in the loop may keep the pod


async def _run_agent(
    plan: dict[str, Any], context: AgentContext, forks: ForkServer, log: PodLogWriter
) -> int:
    from windlass.agent.agent_process import run_agent
    from windlass.agent.inputs import Inputs
    from windlass.agent.pod_output import leave_last_word

    inputs = Inputs(context.plan, context.folder)
    inputs.find(Path(names.FILES_FOLDER))

    def last_word(leading: LeadAgent) -> None:
        leave_last_word(leading.status_writer.status, context.folder, log)

    async def stay() -> None:
        log.finish(b"")
        await _stay(plan, context.folder, is_lead=context.index == 0)

    told = os.environ.get(names.ENV_TELLS_FAILURE, "")
    tells_failure = told == "1" or (told == names.TELLS_BY_LEAD and context.index == 0)
    code = await run_agent(
        context,
        forks,
        inputs,
        echo=log.add,
        at_end=last_word,
        stay=stay if _stays_up() else None,
        failed_code=names.EXIT_FAILED_WORK if tells_failure else 0,
    )
    if code == names.EXIT_FAILED_WORK and told == names.TELLS_BY_LEAD and len(plan["nodes"]) > 1:
        import asyncio

        # a pod that is not seen to have ended is deleted, and what its ranks wrote with it
        await asyncio.sleep(_SEEN_S)
    return code


# -- its place -------------------------------------------------------------------------------------


async def _make_context(
    folder: JobFolder, environ: Mapping[str, str], num_before: int
) -> AgentContext | None:
    """Where this agent works; None when it was given no place before the job ended."""
    from windlass.agent.agent_context import AgentContext
    from windlass.agent.link.tcp import TlsPlace
    from windlass.plan.plan import read_plan
    from windlass.wire.tls import client_context

    plan = read_plan(folder.plan.read_text())
    own = _find_place(environ)
    certificates = client_context(Path(names.SECRET_FOLDER))
    lead = TlsPlace(host=own.lead, port=names.AGENT_PORT, context=certificates)
    uid = os.environ[names.POD_UID]
    # another container of the same pod remembers nothing: it is another agent
    agent = f"{uid}-{num_before}" if num_before else uid
    index, given_by = own.index, ""
    if index is None:
        given = await _ask_index(lead, plan.job_id, agent, timeout_s=plan.join_timeout_s)
        if given is None:
            return None
        index, given_by = given.index, given.lead
    return AgentContext(
        plan=plan,
        folder=folder,
        index=index,
        run_dir=folder.path / "run",
        place=lead if index else _make_listening_place(),
        successor=None if index else lead,
        is_pod=True,
        address=os.environ[names.POD_IP],
        host=os.environ.get(names.K8S_NODE, ""),
        pod=os.environ.get(names.POD_NAME, ""),
        incarnation=agent,
        given_by=given_by,
        num_losses=own.num_losses + num_before,
    )


def _find_place(environ: Mapping[str, str]) -> NodePlace:
    from windlass.agent.place import find_place
    from windlass.errors import EngineError

    try:
        return find_place(environ, socket.gethostname())
    except EngineError as error:
        _fail(str(error))


async def _ask_index(
    lead: TlsPlace, job_id: str, agent: str, *, timeout_s: float
) -> GivenIndex | None:
    from windlass.agent.lead_requests import ask_index

    try:
        return await ask_index(lead, job_id, agent, timeout_s=timeout_s)
    except OSError as error:
        _fail(f"the lead cannot be reached: {error}")


def _fail(why: str) -> NoReturn:
    sys.stderr.write(f"windlass: {why}\n")
    sys.stderr.flush()
    os._exit(1)


def _make_listening_place() -> TlsPlace:
    from windlass.agent.link.tcp import TlsPlace
    from windlass.wire.tls import server_context

    context = server_context(Path(names.SECRET_FOLDER))
    return TlsPlace(host="", port=names.AGENT_PORT, context=context)


# -- after the end ---------------------------------------------------------------------------------


def _stays_up() -> bool:
    return os.environ.get(names.ENV_STAYS_UP) == "1"


def _stay_if_ended(plan: dict[str, Any], environ: Mapping[str, str]) -> None:
    """If the job ended before this container started, stay until the pod is removed, then exit."""
    from windlass.agent.pod_folder import find_end, pod_folder

    folder = pod_folder()
    if find_end(folder) is None:
        return
    import asyncio

    from windlass.agent.agent_process import start_logging

    start_logging()
    asyncio.run(_stay(plan, folder, is_lead=_find_place(environ).index == 0))
    os._exit(0)


async def _stay(plan: dict[str, Any], folder: JobFolder, *, is_lead: bool) -> None:
    """Until the pod is removed."""
    from windlass.agent.pod_folder import mark_end
    from windlass.agent.stay_up import stay_up

    here = _make_listening_place() if is_lead else None
    ttl_s = (plan["pod"] or {}).get("ttl_s")
    await stay_up(folder, plan["job_id"], lead=here, ended_at_s=mark_end(folder), ttl_s=ttl_s)
