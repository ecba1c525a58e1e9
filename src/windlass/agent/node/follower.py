"""Follower: any node except node 0. It joins the lead, executes its orders, and exits when the job ends.

In pods, a lost lead is replaced. A follower that loses its lead ends its ranks within a few seconds, however
long their grace period is, so that two attempts never overlap. Then it waits for the next lead, and sends the
state that the last lead asked it to keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.inputs import Inputs
from windlass.agent.lead_requests import report_end
from windlass.agent.link import endpoints
from windlass.agent.link.agent_link import Link, beat
from windlass.agent.link.folder_sender import FolderSender
from windlass.agent.node.attempt_ranks import JobOrders
from windlass.agent.node.node import Node
from windlass.agent.node.world_ranks import Echo
from windlass.agent.rank_lease import read_clock
from windlass.agent.silence_limits import HEARTBEAT_S
from windlass.errors import BundleError, ProtocolError
from windlass.spec.work import Calls
from windlass.wire.file_sync import (
    Receiver,
    Sender,
    is_from_ranks,
    is_input,
    measure_files,
    read_piece,
)
from windlass.wire.frames import Frame
from windlass.wire.lead_handover import LostLead
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.jobs import (
    LEAD_TO_NODE,
    EndAgent,
    FilesFlushed,
    FilesHere,
    FlushFiles,
    InputsReady,
    JoinLead,
    NodeLeaving,
    NodeTrouble,
)
from windlass.wire.messages.link import FilePiece, GiveIndex, Refused

if TYPE_CHECKING:
    from windlass.agent.link.payload_parts import PartStore

logger = logging.getLogger(__name__)

_REFUSED_RETRY_S = 1.0


class Follower:
    """Agent of one node that follows a lead, or several leads in succession."""

    def __init__(
        self, context: AgentContext, forks: ForkServer, inputs: Inputs, echo: Echo | None
    ) -> None:
        self._context = context
        self._inputs = inputs
        self._link: Link | None = None
        self._lost_s: float | None = None  # when the lost lead last sent something
        self._was_closed = False
        self._is_led = False  # the lead at the other end has accepted this node
        self._pump: FolderSender | None = None
        self.has_ended = False  # set when the lead reports the end
        self.has_failed = False  # the job ended without success
        self._given_by = context.given_by
        self._is_replaced = False  # another agent has its index now
        self.stop_requested = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._parts: PartStore | None = None
        self._receiver = Receiver(
            context.folder, lambda path: is_input(path) or is_from_ranks(path)
        )
        self._reads = LEAD_TO_NODE
        self._handlers: Handlers = {
            Refused: self._raise_refusal,
            FilePiece: self._take_piece,
            GiveIndex: self._take_index,
            FilesHere: self._send_files,
            FlushFiles: lambda _message, _body: self._start(self._flush()),
            EndAgent: self._end,
        }
        self.node = Node(context, forks=forks, send=self._send)
        if isinstance(context.plan.work, Calls):
            self._take_calls(echo)
        else:
            JobOrders(self.node, echo=echo)

    def _take_calls(self, echo: Echo | None) -> None:
        from windlass.agent.link.payload_parts import PartStore
        from windlass.agent.node.compute_orders import ComputeOrders
        from windlass.wire.messages.computes import LEAD_TO_COMPUTE_NODE, PayloadPart

        is_pod = self._context.is_pod
        orders = ComputeOrders(self.node, echo=echo, ship=self._ship if is_pod else None)
        self._parts = PartStore(orders.spill, is_far=is_pod)
        self._reads = LEAD_TO_COMPUTE_NODE
        self._handlers[PayloadPart] = self._parts.take

    def _send(self, message: Message, body: bytes = b"") -> None:
        if self._link is not None:
            self._link.send(message, body)

    async def _ship(self, key: str, path: str) -> None:
        from windlass.agent.link.payload_parts import send_parts

        if self._link is not None:
            await send_parts(self._link, key, path)

    def request_stop(self) -> None:
        """Handle SIGTERM: forward it to the ranks and report the reason to the lead."""
        self._send(NodeLeaving(why="it received SIGTERM"))
        self.node.stop(now=False)
        self.stop_requested.set()

    async def run(self) -> int:
        """Follow until the job ends. Return the exit code of the agent."""
        work = asyncio.ensure_future(self._follow())
        leave = asyncio.ensure_future(self.stop_requested.wait())
        await asyncio.wait({work, leave}, return_when=asyncio.FIRST_COMPLETED)
        leave.cancel()
        if work.done():
            return work.result()
        await self.node.idle()
        is_led = self._link is not None  # if so, the lead knows that the ranks have exited
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        if self._link is not None:
            await self._link.close()
        elif self._context.is_pod and self._lost_s is not None and not is_led:
            await report_end(self._context, self._context.place, self.node.memory)
        return names.EXIT_STOPPED if self._context.is_pod else 0

    async def _follow(self) -> int:
        while True:
            try:
                link = await self._connect()
            except ProtocolError as error:  # an earlier node with this index may still be connected
                logger.warning("%s", error)
                if not self._context.is_pod:
                    return 1
                await asyncio.sleep(_REFUSED_RETRY_S)
                continue
            except OSError as error:
                logger.error("the lead cannot be reached: %s", error)
                return 1
            code = await self._serve(link)
            if self.has_ended or not self._context.is_pod:
                return code
            if self._is_replaced:
                logger.error("another agent is now node %s", self._context.index)
                return 1
            logger.warning(
                "the lead is gone: ending the ranks here, then waiting for the next lead"
            )
            self._end_ranks(link)
            await self.node.idle()
            if code:
                await asyncio.sleep(_REFUSED_RETRY_S)

    def _end_ranks(self, link: Link) -> None:
        """End the ranks within the limit. Kill them now if this agent was unresponsive and is too late."""
        limits = self._context.limits
        is_late = link.is_silent and link.silent_for_s > limits.fence_s + limits.slack_s
        self.node.stop(now=is_late, within_s=limits.cut_grace_s)

    async def _connect(self) -> Link:
        plan = self._context.plan
        given = {"agent": self._context.incarnation, "last_lead": self._given_by}
        return await endpoints.connect(
            self._context.place,
            role="node",
            job_id=plan.job_id,
            node=self._context.index,
            timeout_s=plan.join_timeout_s,
            also=given if self._given_by else None,
        )

    async def _serve(self, link: Link) -> int:
        self._link, self._is_led = link, False
        self.node.introduce(self._make_join())
        limits = self._context.limits
        fence_s = limits.fence_s
        if self._context.is_pod:
            link.watch(fence_s, clock=read_clock, stall_s=limits.silence_s)
        else:
            link.watch(fence_s)
        heart = asyncio.ensure_future(beat(link))
        self.node.renew_lease(link.received_s)  # before any order to start ranks
        lease = asyncio.ensure_future(self._keep_lease(link))
        try:
            await link.listen(self._take)
            if link.has_stalled:
                logger.error("this agent was unresponsive, so its lead may consider it lost")
            elif link.is_silent:
                logger.error("the lead has sent nothing for %g s", fence_s)
        except (ProtocolError, BundleError) as error:
            logger.error("%s", error)
            return 1
        finally:
            heart.cancel()
            lease.cancel()
            self._link = None
            if self._pump is not None:
                self._pump.close()
                self._pump = None
            self._receiver.drop_parts()
            await self._hang_up(link)
        return 0

    async def _keep_lease(self, link: Link) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.node.renew_lease(link.received_s)

    async def _hang_up(self, link: Link) -> None:
        """Close the link at the end of the job, otherwise abort it. A close means that no ranks remain."""
        if self._is_led:
            self._lost_s = asyncio.get_running_loop().time() - link.silent_for_s
            self._was_closed = link.is_closed
        if self._context.is_pod and not self.has_ended and not self.stop_requested.is_set():
            link.cut()
        else:
            await link.close()

    def _make_join(self) -> JoinLead:
        context = self._context
        return JoinLead(
            pid=os.getpid(),
            python=platform.python_version(),
            host=context.host,
            pod=context.pod,
            address=context.address,
            is_prepared=self._inputs.is_ready,
            has=measure_files(context.folder, is_input) if context.is_pod else {},
            incarnation=context.incarnation,
            lost_lead=self._make_lost_lead(),
        )

    def _make_lost_lead(self) -> LostLead | None:
        """Return how the previous lead was lost, or None if none was."""
        if self._lost_s is None:
            return None
        ago_s = asyncio.get_running_loop().time() - self._lost_s
        return LostLead(ago_s=ago_s, is_closed=self._was_closed)

    def _take(self, frame: Frame) -> None:
        message = self._reads.read(frame.header)
        handle = self._handlers.get(type(message))
        self._is_led |= not isinstance(message, Refused)
        if handle is not None:
            handle(message, frame.body)
        elif self._parts is not None:
            self.node.receive(self._parts.with_file(message), frame.body)
        else:
            self.node.receive(message, frame.body)

    @staticmethod
    def _raise_refusal(message: Refused, _body: bytes) -> None:
        raise ProtocolError(message.why, hint=message.hint)

    def _take_index(self, message: GiveIndex, _body: bytes) -> None:
        self._is_replaced = message.index is None
        self._given_by = message.lead

    def _send_files(self, message: FilesHere, _body: bytes) -> None:
        if self._link is not None:
            sender = Sender(self._context.folder, is_from_ranks, has=message.files)
            self._pump = FolderSender(self._link, sender)

    def _end(self, message: EndAgent, _body: bytes) -> None:
        self.has_ended, self.has_failed = True, message.has_failed
        if self._parts is not None and self._link is not None:
            # the lead of a compute that continues without this node does not hang up
            self._start(self._link.close())

    def _take_piece(self, message: FilePiece, body: bytes) -> None:
        piece = read_piece(message, body)
        if self._receiver.take(piece) and is_input(piece.path) and self._inputs.arrived(piece.path):
            self._send(InputsReady())

    async def _flush(self) -> None:
        if self._pump is not None:
            await self._pump.round()
            name = self._context.plan.nodes[self._context.index].name
            for path, why in self._pump.troubles.items():
                message = f"{name} could not send {path}: {why}"
                self._send(NodeTrouble(reason=names.REASON_RESULT_MISSING, message=message))
        self._send(FilesFlushed())

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
