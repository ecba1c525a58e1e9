"""One agent, lead or follower, from its first order to its exit code.

Signals and the order of shutting down live here; what they mean for the job is the lead's business. May be
PID 1: it reaps whatever is left to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from windlass import names, processes
from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.lead.jobs.job_lead import JobLead
from windlass.agent.lead.lead_links import Lead
from windlass.agent.lead.lead_server import LeadServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead_requests import say_farewell
from windlass.agent.link import endpoints
from windlass.agent.node.attempt_ranks import JobOrders
from windlass.agent.node.follower import Follower
from windlass.agent.node.node import Node
from windlass.agent.node.world_ranks import Echo
from windlass.agent.pod_output import loses_results
from windlass.agent.rank_lease import read_clock
from windlass.agent.silence_limits import HEARTBEAT_S
from windlass.plan.plan import Plan, read_plan
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder
from windlass.wire.lead_handover import make_memory
from windlass.wire.message import Message
from windlass.wire.messages.jobs import EndAgent, FilesFlushed, FlushFiles, JoinLead
from windlass.wire.states import MomentName
from windlass.wire.status import FailureKind, Phase

if TYPE_CHECKING:
    from windlass.wire.messages.agents import StartNode

logger = logging.getLogger(__name__)

_PATIENCE_S = 30.0  # with clients that read no more
_FIRST_READER_S = 20.0


class LeadAgent:
    """Node 0: leads, and runs its own ranks."""

    def __init__(
        self, context: AgentContext, forks: ForkServer, inputs: Inputs, echo: Echo | None
    ) -> None:
        self._context = context
        self._forks = forks
        self._inputs = inputs
        plan, folder = context.plan, context.folder
        self.status_writer = StatusWriter(plan, folder)
        self.status_writer.mark(MomentName.AGENT_UP)
        self.lead: Lead
        if isinstance(plan.work, Calls):
            from windlass.agent.node_zero import make_staff

            self.lead, self.node, call_server = make_staff(
                context, forks, self.status_writer, self._hear, echo
            )
            self.lead_server = LeadServer(context, self.lead, inputs, call_server)
        else:
            memory = make_memory(context.num_losses)
            self.lead = JobLead(
                plan,
                self.status_writer,
                address=context.address,
                memory=memory,
                incarnation=context.incarnation,
                sight=context.sight,
            )
            self.node = Node(context, forks=forks, send=self._hear)
            JobOrders(self.node, echo=echo)
            self.lead_server = LeadServer(context, self.lead, inputs)
        self._leading: asyncio.Task[None] | None = None
        self.must_go = asyncio.Event()

    def _hear(self, message: Message, body: bytes = b"") -> None:
        self.lead.receive(0, message, body)

    def _order(self, message: Message, body: bytes = b"") -> None:
        if isinstance(message, FlushFiles):  # its files are here already
            self.lead.receive(0, FilesFlushed())
        else:
            self.node.receive(message, body)

    def told_to_stop(self) -> None:
        """SIGTERM: on one machine the job's end; in a pod, this node's alone."""
        if not self._context.is_pod:
            self.lead.end(FailureKind.CANCELLED, "the lead's agent was told to stop (SIGTERM)")
        elif self._leading is not None:
            self._leading.cancel()
        self.must_go.set()

    @property
    def has_failed(self) -> bool:
        """Whether the job has ended, and did not succeed."""
        phase = self.status_writer.status.phase
        return phase.is_final and phase is not Phase.SUCCEEDED

    async def _part(self) -> None:
        """Let clients read what is left, and send everybody home.

        The job has ended: an agent that failed of anything here would have it run once more.
        """
        try:
            if self._context.is_pod:
                reading = asyncio.ensure_future(self._let_clients_read())
                told = asyncio.ensure_future(self.must_go.wait())
                await asyncio.wait({reading, told}, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if not reading.cancel():
                    reading.result()
            else:
                await self.lead_server.see_off(patience_s=0)
        except Exception:
            logger.exception("clients may not have read everything")
        try:
            await self.lead_server.dismiss(EndAgent(has_failed=self.has_failed))
        except Exception:
            logger.exception("not everybody was told of the end")

    async def _let_clients_read(self) -> None:
        """Wait for those that surely come, and for those that would miss what a pod's log cannot keep."""
        plan, folder = self._context.plan, self._context.folder
        is_needed = loses_results(self.status_writer.status, folder)
        # a client that was waited for in vain is not waited for once more
        is_awaited = not self.lead_server.is_abandoned
        await self.lead_server.serve_readers(
            first_s=_FIRST_READER_S if is_awaited and (is_needed or not plan.detach) else 0.0,
            again_s=plan.lease_s if is_awaited and is_needed else 0.0,
            patience_s=_PATIENCE_S,
        )

    async def run(self) -> int:
        """Lead the job to its end; the exit code of the agent."""
        job_id = self._context.plan.job_id
        server = await endpoints.serve(self._context.place, job_id, self.lead_server.take)
        self.lead.join(
            0,
            self._order,
            JoinLead(
                pid=os.getpid(),
                python=platform.python_version(),
                host=self._context.host,
                pod=self._context.pod,
                is_prepared=self._inputs.is_ready,
                incarnation=self._context.incarnation,
            ),
        )
        lease = asyncio.ensure_future(self.lead_server.watch_lease())
        alive = asyncio.ensure_future(self._keep_lease())
        self._leading = asyncio.ensure_future(self.lead.run())
        try:
            await self._leading
            await self._part()
            return 0
        except asyncio.CancelledError:
            server.close()  # whoever comes now is for the next lead
            await self.lead.leave()
            await self.lead_server.dismiss()
            self.node.stop(now=False)
            await self.node.idle()
            if self._context.successor is not None and self.lead.has_lost_nodes:
                await say_farewell(self._context, self._context.successor, self.node.memory)
            return names.EXIT_TOLD_TO_STOP
        finally:
            lease.cancel()
            alive.cancel()
            server.close()
            self._forks.close()

    async def _keep_lease(self) -> None:
        """Keep the ranks here alive for as long as this lead is. One that stood still may not be the lead."""
        while True:
            self.node.renew_lease(read_clock())
            await asyncio.sleep(HEARTBEAT_S)


async def run_agent(
    context: AgentContext,
    forks: ForkServer,
    inputs: Inputs,
    client: socket.socket | None = None,
    *,
    echo: Echo | None = None,
    at_end: Callable[[LeadAgent], None] | None = None,
    stay: Callable[[], Awaitable[None]] | None = None,
    failed_code: int = 0,
) -> int:
    """Be the agent of one node, to its exit code.

    `echo` is told what ranks print, `at_end` that the job has ended; `stay` is what an agent does afterwards
    that must not exit by itself; `failed_code` is what it exits with when the job did not succeed.
    """
    agent: LeadAgent | Follower
    if context.index == 0:
        agent = leading = LeadAgent(context, forks, inputs, echo)
        if client is not None:
            leading.lead_server.hold_until_closed(client)
        _handle_signals(leading.told_to_stop)
        code = await _lead_and_leave(leading, at_end)
    else:
        if client is not None:
            client.close()
        agent = follower = Follower(context, forks, inputs, echo)
        _handle_signals(follower.told_to_stop)
        try:
            code = await follower.run()
        finally:
            forks.close()
    if stay is not None and code == 0 and not agent.must_go.is_set():
        await stay()
    return code or (failed_code if agent.has_failed else 0)


async def _lead_and_leave(leading: LeadAgent, at_end: Callable[[LeadAgent], None] | None) -> int:
    """Once the status is final, nothing that fails is a reason to have the job run again."""
    code = 0
    try:
        code = await leading.run()
    except Exception:
        if not leading.status_writer.status.phase.is_final:
            raise
        logger.exception("the job had ended, but its agent failed")
    try:
        if at_end is not None and leading.status_writer.status.phase.is_final:
            at_end(leading)
    except Exception:
        logger.exception("what the job left could not be kept")
    return code


def _handle_signals(on_term: Any) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, on_term)
    loop.add_signal_handler(signal.SIGCHLD, _reap)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(ignored, lambda: None)
    _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def start_logging() -> None:
    """What the agent says of itself goes to its own log."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def prepare_forks(plan: Plan, forks: ForkServer) -> None:
    """The fork server this plan wants: the one that runs already, or a new one."""
    env = {**os.environ, **plan.env}
    if not forks.fits(plan.preload, env):
        forks.close()
        forks.start(plan.preload, env)
    forks.extend(plan.preload)


def main(order: StartNode, forks: ForkServer, client: socket.socket) -> NoReturn:
    """Run one agent of the local engine to its end."""
    start_logging()
    processes.become_subreaper()
    folder = JobFolder(Path(order.plan).parent)
    plan = read_plan(folder.plan.read_text())
    os.environ.update(order.hidden)  # in memory: what is on disk is older
    _take_gpus(folder, order.node)
    prepare_forks(plan, forks)
    run_dir = Path(order.run_dir)
    context = AgentContext(
        plan=plan,
        folder=folder,
        index=order.node,
        run_dir=run_dir,
        place=run_dir / names.LEAD_SOCKET,
    )
    inputs = Inputs(plan, folder)
    inputs.find(folder.path)
    asyncio.run(_run_and_leave(context, forks, inputs, client))


def _take_gpus(folder: JobFolder, index: int) -> None:
    """Show this node's ranks the GPUs that the client chose for it, and no others."""
    with contextlib.suppress(FileNotFoundError):
        os.environ[names.CUDA_VISIBLE_DEVICES] = folder.gpus(index).read_text()


async def _run_and_leave(
    context: AgentContext, forks: ForkServer, inputs: Inputs, client: socket.socket
) -> NoReturn:
    """When all is said, the process ends at once: a task that is lost in the loop must not keep it."""
    code = 1
    try:
        code = await run_agent(context, forks, inputs, client)
    except BaseException:  # its last words are in the agent's log
        logging.getLogger(__name__).exception("the agent failed")
    finally:
        if context.index == 0:
            shutil.rmtree(context.run_dir, ignore_errors=True)
            if isinstance(context.plan.work, Calls):
                from windlass.wire.payloads import remove_spills

                remove_spills(context.plan.job_id)
        logging.shutdown()
        os._exit(code)
