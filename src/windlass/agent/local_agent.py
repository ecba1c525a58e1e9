"""Program of an agent on the client's machine, which receives its order over a socket pair.

The agent starts the fork server before it imports anything else, because importing torch takes the most time.
"""

from __future__ import annotations

import os
import sys

from windlass.agent.fork_server_start import spawn_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import NoReturn

    from windlass.agent.agent_context import AgentContext
    from windlass.agent.fork_server_client import ForkServer
    from windlass.wire.messages.agents import StartNode


def run_local_agent(order_fd: str, *guess: str) -> NoReturn:
    """Run the agent of the node that the order names, until its job ends.

    With a `guess`, the fork server starts before the order arrives. The guess consists of both ends of its
    socket, the modules to import, and variables.
    """
    if guess:
        ours, theirs, modules, *variables = guess
        preload = modules.split(",")
        env = {**os.environ, **dict(word.split("=", 1) for word in variables)}
        pid = spawn_server(int(theirs), preload, env)

    from windlass.agent.fork_server_client import ForkServer
    from windlass.wire.start_order import receive_order

    forks = ForkServer()
    if guess:
        forks.adopt(_take_socket(ours), pid, preload, env)
    client = _take_socket(order_fd)
    received = receive_order(client)
    if received is None:
        forks.close()
        sys.exit(1)
    order, _lock = received  # an open descriptor, so the lock is held until this process exits
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)

    from windlass.agent.agent_process import run_agent, run_to_exit, start_logging
    from windlass.agent.inputs import Inputs
    from windlass.processes import become_subreaper

    start_logging()
    become_subreaper()
    context = _make_context(order, forks)
    inputs = Inputs(context.plan, context.folder)
    inputs.find(context.folder.path)
    run_to_exit(run_agent(context, forks, inputs, client), lambda: _remove_files(context))


def _take_socket(fd: str) -> socket.socket:
    """Return an inherited socket, which children will not inherit."""
    import socket

    taken = socket.socket(fileno=int(fd))
    taken.set_inheritable(False)
    return taken


def _make_context(order: StartNode, forks: ForkServer) -> AgentContext:
    """Read the plan, prepare the fork server for it, and return the context of this agent."""
    import contextlib
    from pathlib import Path

    from windlass import names
    from windlass.agent.agent_context import AgentContext
    from windlass.agent.agent_process import prepare_forks
    from windlass.plan.plan import read_plan
    from windlass.wire.job_folder import JobFolder

    folder = JobFolder(Path(order.plan).parent)
    plan = read_plan(folder.plan.read_text())
    os.environ.update(order.hidden)  # variables that are never written to disk
    with contextlib.suppress(FileNotFoundError):  # the GPUs that the client chose for this node
        os.environ[names.CUDA_VISIBLE_DEVICES] = folder.gpus(order.node).read_text()
    prepare_forks(plan, forks)
    run_dir = Path(order.run_dir)
    place = run_dir / names.LEAD_SOCKET
    return AgentContext(plan=plan, folder=folder, index=order.node, run_dir=run_dir, place=place)


def _remove_files(context: AgentContext) -> None:
    """Remove the lead's files that are not needed after it exits."""
    if context.index:
        return
    import shutil

    from windlass.spec.work import Calls

    shutil.rmtree(context.run_dir, ignore_errors=True)
    if isinstance(context.plan.work, Calls):
        from windlass.wire.payloads import remove_spills

        remove_spills(context.plan.job_id)


def run_replacement(order_fd: str) -> int:
    """Start an agent in a new session, so that it is not a child of the lead."""
    argv = [sys.executable, "-I", "-S", sys.argv[0], "agent", order_fd]
    os.posix_spawn(argv[0], argv, os.environ, setsid=True)
    return 0
