"""One agent: wires a node to its lead, over a link or in the same process, and ends with them.

Signals, the lease of clients and the order of shutting down live here; what they mean for the job is
the lead's business. May be PID 1: it reaps whatever is left to it.
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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from windlass import names
from windlass.agent import link as links
from windlass.agent import processes
from windlass.agent.board import Board
from windlass.agent.forks import ForkServer
from windlass.agent.lead import Lead
from windlass.agent.node import Node
from windlass.errors import ProtocolError
from windlass.plan.plan import Plan, read_plan
from windlass.wire.folder import JobFolder
from windlass.wire.messages import Frame, Header, refusal
from windlass.wire.status import FailureKind

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
_SILENCE_S = 10.0  # a lead or a follower that says nothing for so long is taken for gone


async def run_lead(
    plan: Plan, folder: JobFolder, run_dir: Path, forks: ForkServer, client: socket.socket
) -> int:
    """Node 0: leads, and runs its own ranks."""
    board = Board(plan, folder)
    board.mark("agent up")
    lead = Lead(plan, board)
    node = Node(
        plan, folder, 0, run_dir, forks=forks, send=lambda message: lead.receive(0, message)
    )
    door = _Door(plan, lead)
    door.hold_until_closed(client)
    _handle_signals(
        lambda: lead.end(FailureKind.CANCELLED, "the lead's agent was told to stop (SIGTERM)")
    )
    server = await links.serve(run_dir / names.LEAD_SOCKET, plan.job_id, door.take)
    lead.join(0, node.receive, pid=os.getpid(), python=platform.python_version())
    lease = asyncio.ensure_future(door.watch_lease())
    try:
        await lead.run()
    finally:
        lease.cancel()
        server.close()
        forks.close()
        await door.dismiss()
        shutil.rmtree(run_dir, ignore_errors=True)
    return 0


async def run_follower(
    plan: Plan, folder: JobFolder, index: int, run_dir: Path, forks: ForkServer
) -> int:
    """Any other node: joins the lead, and does what it says until it hangs up."""
    try:
        link = await links.connect(
            run_dir / names.LEAD_SOCKET,
            role="node",
            job_id=plan.job_id,
            node=index,
            timeout_s=plan.join_timeout_s,
        )
    except OSError as error:
        logger.error("the lead cannot be reached: %s", error)
        forks.close()
        return 1
    node = Node(plan, folder, index, run_dir, forks=forks, send=link.send)
    _handle_signals(lambda: node.stop(now=False))
    link.send({"type": "join", "pid": os.getpid(), "python": platform.python_version()})
    try:
        async for frame in _heard(link):
            if refused := refusal(frame.header):
                logger.error("%s", refused)
                return 1
            node.receive(dict(frame.header))
    except asyncio.TimeoutError:
        logger.error("the lead has said nothing for %g s", _SILENCE_S)
    finally:
        forks.close()
    return 0


async def _heard(link: links.Link) -> AsyncIterator[Frame]:
    """Frames from the lead, with heartbeats sent meanwhile; silence ends it."""
    heart = asyncio.ensure_future(_beat(link))
    frames = link.frames()
    try:
        while True:
            try:
                yield await asyncio.wait_for(frames.__anext__(), timeout=_SILENCE_S)
            except StopAsyncIteration:
                return
    finally:
        heart.cancel()


async def _beat(link: links.Link) -> None:
    while True:
        link.send({"type": "heartbeat"})
        await asyncio.sleep(_HEARTBEAT_S)


class _Door:
    """Who comes to the lead: nodes that join, clients that hold a lease or want something."""

    def __init__(self, plan: Plan, lead: Lead) -> None:
        self._plan = plan
        self._lead = lead
        self._num_leases = 0
        self._lease_changed = asyncio.Event()
        self._links: set[links.Link] = set()

    async def take(self, link: links.Link, hello: Header, frames: AsyncIterator[Frame]) -> None:
        self._links.add(link)
        try:
            if hello["role"] == "node":
                await self._take_node(link, int(hello["node"]), frames)
            else:
                await self._take_client(link, bool(hello.get("lease")), frames)
        finally:
            self._links.discard(link)

    async def _take_node(self, link: links.Link, index: int, frames: AsyncIterator[Frame]) -> None:
        heart = asyncio.ensure_future(_beat(link))
        try:
            while True:
                frame = await asyncio.wait_for(frames.__anext__(), timeout=_SILENCE_S)
                if frame.type == "join":
                    about = {key: frame.header[key] for key in ("pid", "python")}
                    self._lead.join(index, link.send, **about)
                else:
                    self._lead.receive(index, dict(frame.header))
        except (StopAsyncIteration, asyncio.TimeoutError):
            self._lead.lose(index)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self._lead.lose(index)
            raise ProtocolError(f"node {index} said something malformed: {error!r}") from error
        finally:
            heart.cancel()

    async def _take_client(
        self, link: links.Link, holds_lease: bool, frames: AsyncIterator[Frame]
    ) -> None:
        self._num_leases += holds_lease
        self._lease_changed.set()
        try:
            async for frame in frames:
                if frame.type == "cancel":
                    why = str(frame.header.get("why") or "cancelled by a client")
                    self._lead.end(FailureKind.CANCELLED, why, now=bool(frame.header.get("now")))
                    link.send({"type": "ok"})
        finally:
            self._num_leases -= holds_lease
            self._lease_changed.set()

    def hold_until_closed(self, client: socket.socket) -> None:
        """A lease from birth: the client keeps this open until it has said hello."""
        self._num_leases += 1

        def closed() -> None:
            asyncio.get_running_loop().remove_reader(client.fileno())
            client.close()
            self._num_leases -= 1
            self._lease_changed.set()

        asyncio.get_running_loop().add_reader(client.fileno(), closed)

    async def watch_lease(self) -> None:
        """An attached job ends when nobody has held a lease on it for a while."""
        while not self._plan.detach:
            self._lease_changed.clear()
            if self._num_leases:
                await self._lease_changed.wait()
                continue
            try:
                await asyncio.wait_for(self._lease_changed.wait(), self._plan.lease_s)
            except asyncio.TimeoutError:
                message = f"its client has been gone for {self._plan.lease_s:g} s"
                self._lead.end(FailureKind.CANCELLED, message)
                return

    async def dismiss(self) -> None:
        for link in list(self._links):
            await link.close()


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


def main(order: dict[str, Any], forks: ForkServer, client: socket.socket) -> int:
    """Run one agent to its end; the exit code of its process."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    processes.become_subreaper()
    folder = JobFolder(Path(order["plan"]).parent)
    plan = read_plan(folder.plan.read_text())
    env = {**os.environ, **plan.env}
    if not forks.fits(plan.preload, env):
        forks.close()
        forks.start(plan.preload, env)
    forks.extend(plan.preload)
    index, run_dir = int(order["node"]), Path(order["run_dir"])
    if index == 0:
        return asyncio.run(run_lead(plan, folder, run_dir, forks, client))
    client.close()
    return asyncio.run(run_follower(plan, folder, index, run_dir, forks))
