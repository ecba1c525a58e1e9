"""Lifecycle of one agent, as lead or follower, from its context to its exit code.

`run_agent` is the common part of the programs of a local agent and of a pod's agent. This module handles
signals and the order of the shutdown. The lead decides what a signal means for the job. The process may be
PID 1, so it reaps all orphaned processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.lead.jobs.job_lead import JobLead
from windlass.agent.lead.lead_server import Lead, LeadServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead_requests import report_end
from windlass.agent.link import endpoints
from windlass.agent.node.attempt_ranks import JobOrders
from windlass.agent.node.follower import Follower
from windlass.agent.node.node import Node
from windlass.agent.node.world_ranks import Echo
from windlass.agent.pod_output import loses_results
from windlass.agent.rank_lease import read_clock
from windlass.agent.silence_limits import HEARTBEAT_S
from windlass.plan.plan import Plan
from windlass.spec.work import Calls
from windlass.wire.lead_handover import make_memory
from windlass.wire.message import Message
from windlass.wire.messages.jobs import EndAgent, FilesFlushed, FlushFiles, JoinLead
from windlass.wire.states import MomentName
from windlass.wire.status import FailureKind, Phase

if TYPE_CHECKING:
    import socket

    from windlass.agent.lead.calls.call_lead import CallLead

logger = logging.getLogger(__name__)

_READER_IDLE_S = 30.0  # stop waiting for a client that reads nothing for this long
_FIRST_READER_S = 20.0


class LeadAgent:
    """Agent of node 0, which leads the job and runs its own ranks."""

    def __init__(
        self, context: AgentContext, forks: ForkServer, inputs: Inputs, echo: Echo | None
    ) -> None:
        self._context = context
        self._inputs = inputs
        self.status_writer = StatusWriter(context.plan, context.folder)
        self.status_writer.mark(MomentName.AGENT_UP)
        self.node = Node(context, forks=forks, send=self._send_to_lead)
        self.lead: Lead
        if isinstance(context.plan.work, Calls):
            self.lead, self.lead_server = self._make_compute_lead(echo)
        else:
            self.lead, self.lead_server = self._make_job_lead(echo)
        self._leading: asyncio.Task[None] | None = None
        self.stop_requested = asyncio.Event()

    def _make_job_lead(self, echo: Echo | None) -> tuple[JobLead, LeadServer]:
        context = self._context
        JobOrders(self.node, echo=echo)
        lead = JobLead(
            context.plan,
            self.status_writer,
            address=context.address,
            memory=make_memory(context.num_losses),
            incarnation=context.incarnation,
            limits=context.limits,
        )
        return lead, LeadServer(context, lead, self._inputs)

    def _make_compute_lead(self, echo: Echo | None) -> tuple[CallLead, LeadServer]:
        # imported late, because they would delay the start of jobs
        from windlass.agent.lead.calls.call_lead import CallLead
        from windlass.agent.lead.calls.call_server import CallServer
        from windlass.agent.node.compute_orders import ComputeOrders

        context = self._context
        orders = ComputeOrders(self.node, echo=echo)
        lead = CallLead(
            context.plan,
            self.status_writer,
            address=context.address,
            incarnation=context.incarnation,
            limits=context.limits,
            projects=orders.projects,
            keeps_logs=context.is_pod,
        )
        call_server = CallServer(context, lead, orders.projects, orders.spill)
        return lead, LeadServer(context, lead, self._inputs, call_server)

    def _send_to_lead(self, message: Message, body: bytes = b"") -> None:
        self.lead.receive(0, message, body)

    def _send_to_node(self, message: Message, body: bytes = b"") -> None:
        if isinstance(message, FlushFiles):  # node 0's files are already here
            self.lead.receive(0, FilesFlushed())
        else:
            self.node.receive(message, body)

    def request_stop(self) -> None:
        """Handle SIGTERM: end the whole job on one machine, or only this node in a pod."""
        if not self._context.is_pod:
            self.lead.end(FailureKind.CANCELLED, "the lead's agent received SIGTERM")
        elif self._leading is not None:
            self._leading.cancel()
        self.stop_requested.set()

    @property
    def has_ended(self) -> bool:
        """True if the job has ended."""
        return self.status_writer.status.phase.is_final

    @property
    def has_failed(self) -> bool:
        """True if the job has ended without success."""
        return self.has_ended and self.status_writer.status.phase is not Phase.SUCCEEDED

    async def _serve_last(self) -> None:
        """Serve remaining readers, then notify the followers and clients of the end.

        Exceptions are only logged, because the job has ended and a failed agent would make it run again.
        """
        try:
            if self._context.is_pod:
                reading = asyncio.ensure_future(self._let_clients_read())
                stopping = asyncio.ensure_future(self.stop_requested.wait())
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if not reading.cancel():
                    reading.result()
            else:
                await self.lead_server.wait_for_readers(idle_timeout_s=0)
        except Exception:
            logger.exception("clients may not have read everything")
        try:
            await self.lead_server.close_links(EndAgent(has_failed=self.has_failed))
        except Exception:
            logger.exception("not every node and client was notified of the end")

    async def _let_clients_read(self) -> None:
        """Wait for expected clients, and for clients that need results too large for the pod's log."""
        plan, folder = self._context.plan, self._context.folder
        is_needed = loses_results(self.status_writer.status, folder)
        # an earlier wait for a client timed out, so do not wait again
        is_awaited = not self.lead_server.is_abandoned
        await self.lead_server.serve_readers(
            first_s=_FIRST_READER_S if is_awaited and (is_needed or not plan.detach) else 0.0,
            again_s=plan.lease_s if is_awaited and is_needed else 0.0,
            idle_timeout_s=_READER_IDLE_S,
        )

    async def run(self) -> int:
        """Lead the job until it ends. Return the agent's exit code."""
        job_id = self._context.plan.job_id
        server = await endpoints.serve(self._context.place, job_id, self.lead_server.take)
        self.lead.join(
            0,
            self._send_to_node,
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
            await self._serve_last()
            return 0
        except asyncio.CancelledError:
            server.close()  # nodes that connect later belong to the next lead
            await self.lead.leave()
            await self.lead_server.close_links()
            self.node.stop(now=False)
            await self.node.idle()
            if self._context.successor is not None and self.lead.has_lost_nodes:
                await report_end(self._context, self._context.successor, self.node.memory)
            return names.EXIT_STOPPED
        finally:
            lease.cancel()
            alive.cancel()
            server.close()

    async def _keep_lease(self) -> None:
        """Renew the lease of the ranks while this lead responds. After a stall, another lead may exist."""
        while True:
            self.node.renew_lease(read_clock())
            await asyncio.sleep(HEARTBEAT_S)


Agent: TypeAlias = "LeadAgent | Follower"


async def run_agent(
    context: AgentContext,
    forks: ForkServer,
    inputs: Inputs,
    client: socket.socket | None = None,
    *,
    echo: Echo | None = None,
    finish: Callable[[Agent, int], Awaitable[int]] | None = None,
) -> int:
    """Lead or follow until the job ends. Return the exit code of the process.

    `echo` receives the output of ranks. `finish` runs unless the agent failed before the job ended. It
    returns the exit code.
    """
    agent: Agent
    if context.index == 0:
        agent = LeadAgent(context, forks, inputs, echo)
        if client is not None:
            agent.lead_server.hold_until_closed(client)
    else:
        agent = Follower(context, forks, inputs, echo)
        if client is not None:
            client.close()
    _handle_signals(agent.request_stop)
    code = 0
    try:
        with contextlib.closing(forks):
            code = await agent.run()
    except Exception:
        if not agent.has_ended:
            raise
        logger.exception("the job had ended, but its agent failed")  # it must not run again
    return code if finish is None else await finish(agent, code)


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
    """Write the agent's own messages to its standard error."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def prepare_forks(plan: Plan, forks: ForkServer) -> None:
    """Restart the fork server if the running one does not fit the plan."""
    env = {**os.environ, **plan.env}
    if not forks.fits(plan.preload, env):
        forks.close()
        forks.start(plan.preload, env)
    forks.extend(plan.preload)


def run_to_exit(agent: Coroutine[Any, Any, int], clean_up: Callable[[], None]) -> NoReturn:
    """Run an agent and exit without waiting for remaining tasks and threads."""
    code = 1
    try:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        code = loop.run_until_complete(agent)
    except BaseException:
        logger.exception("the agent failed")
    finally:
        try:
            clean_up()
            logging.shutdown()
        finally:
            os._exit(code)
