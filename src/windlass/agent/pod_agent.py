"""Program of an agent in a pod. Its place comes from the environment, and its plan from the job's Secret.

A pod is any node with its own folder that reaches the lead over TLS. Nothing here needs Kubernetes.

The agent starts the fork server before it imports anything else, because importing torch takes the most time.
`agent.pod_end` handles the end of the job.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from windlass import names
from windlass.agent.fork_server_start import spawn_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from windlass.agent.agent_context import AgentContext
    from windlass.agent.fork_server_client import ForkServer
    from windlass.agent.lead_requests import GivenIndex
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.place import NodePlace
    from windlass.wire.job_folder import JobFolder


def run_pod_agent() -> NoReturn:
    """Run the agent of this pod until its job or the pod ends."""
    # PID 1 has no default handler, so without this SIGTERM has no effect before the loop runs
    signal.signal(signal.SIGTERM, lambda *_: os._exit(names.EXIT_STOPPED))
    text = (Path(names.SECRET_FOLDER) / names.PLAN_FILE).read_bytes()
    plan = json.loads(text)
    environ = dict(
        os.environ
    )  # copied before variables are removed, because some of them give this agent's place
    _set_own_environment(environ)
    if os.environ.get(names.ENV_STAYS_UP) == "1":
        _stay_if_ended(plan, environ)
    forks = _start_forks(plan)

    from windlass.agent.agent_process import run_agent, run_to_exit, start_logging
    from windlass.agent.inputs import Inputs
    from windlass.agent.pod_end import PodEnd
    from windlass.agent.pod_folder import open_pod_folder
    from windlass.agent.pod_output import PodLogWriter
    from windlass.processes import become_subreaper

    folder, num_before = open_pod_folder(text)
    start_logging()
    become_subreaper()
    context = _make_context(folder, environ, num_before)
    log = PodLogWriter()
    if context is None:  # the job ended before this agent joined
        forks.close()
        run_to_exit(PodEnd(plan, folder, log).stay(is_lead=False), log.flush)
    inputs = Inputs(context.plan, context.folder)
    inputs.find(Path(names.FILES_FOLDER))
    finish = PodEnd(plan, folder, log).finish
    run_to_exit(run_agent(context, forks, inputs, echo=log.add, finish=finish), log.flush)


def _set_own_environment(environ: Mapping[str, str]) -> None:
    """Remove variables that ranks must not see, and set the ranks' output folder."""
    for name in environ.get(names.ENV_FORGET, "").split(","):
        os.environ.pop(name, None)
    out = (
        names.POD_OUT
        if os.access(names.POD_OUT, os.W_OK)
        else f"{names.JOB_FOLDER}/{names.OUT_FOLDER}"
    )
    os.environ.setdefault(names.OUT, out)  # the plan's own value takes precedence


def _start_forks(plan: dict[str, Any]) -> ForkServer:
    env = {**os.environ, **plan["env"]}
    ours, theirs = socket.socketpair()
    pid = spawn_server(theirs.detach(), plan["preload"], env)

    from windlass.agent.fork_server_client import ForkServer

    forks = ForkServer()
    forks.adopt(ours, pid, plan["preload"], env)
    return forks


# -- its place -------------------------------------------------------------------------------------


def _make_context(
    folder: JobFolder, environ: Mapping[str, str], num_before: int
) -> AgentContext | None:
    """Return the context of this agent, or None if the job ended before the lead assigned an index."""
    from windlass.agent.agent_context import AgentContext
    from windlass.agent.link.tcp import TlsPlace
    from windlass.agent.pod_end import make_listening_place
    from windlass.plan.plan import read_plan
    from windlass.wire.tls import client_context

    plan = read_plan(folder.plan.read_text())
    own = _find_place(environ)
    certificates = client_context(Path(names.SECRET_FOLDER))
    lead = TlsPlace(host=own.lead, port=names.AGENT_PORT, context=certificates)
    uid = os.environ[names.POD_UID]
    # a restarted container has no state, so it counts as another agent
    agent = f"{uid}-{num_before}" if num_before else uid
    index, given_by = own.index, ""
    if index is None:
        given = _ask_index(lead, plan.job_id, agent, timeout_s=plan.join_timeout_s)
        if given is None:
            return None
        index, given_by = given.index, given.lead
    return AgentContext(
        plan=plan,
        folder=folder,
        index=index,
        run_dir=folder.path / "run",
        place=lead if index else make_listening_place(),
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


def _ask_index(lead: TlsPlace, job_id: str, agent: str, *, timeout_s: float) -> GivenIndex | None:
    import asyncio

    from windlass.agent.lead_requests import ask_index

    try:
        return asyncio.run(ask_index(lead, job_id, agent, timeout_s=timeout_s))
    except OSError as error:
        _fail(f"the lead cannot be reached: {error}")


def _fail(why: str) -> NoReturn:
    sys.stderr.write(f"windlass: {why}\n")
    sys.stderr.flush()
    os._exit(1)


def _stay_if_ended(plan: dict[str, Any], environ: Mapping[str, str]) -> None:
    """If the job ended before this container started, wait for the pod to be deleted, then exit."""
    from windlass.agent.pod_folder import find_end, pod_folder

    folder = pod_folder()
    if find_end(folder) is None:
        return

    from windlass.agent.agent_process import run_to_exit, start_logging
    from windlass.agent.pod_end import PodEnd
    from windlass.agent.pod_output import PodLogWriter

    start_logging()
    is_lead = _find_place(environ).index == 0
    log = PodLogWriter()
    run_to_exit(PodEnd(plan, folder, log).stay(is_lead=is_lead), log.flush)
