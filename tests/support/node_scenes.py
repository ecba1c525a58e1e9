"""A node in a separate process, with a fork server and a lead that a scene plays. Run by `test_node`.

The ranks are real processes, because signals are sent to them. The node has a separate process because it
kills all remaining processes below it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer, read_request, send_event
from windlass.agent.link.rank_channel import RankEnd
from windlass.agent.node.attempt_ranks import JobOrders
from windlass.agent.node.compute_orders import ComputeOrders
from windlass.agent.node.node import Node
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls, Command
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.computes import CallAnswer, ForkWorld, RunCall, WorldAbsent
from windlass.wire.messages.forkserver import (
    CallRankSetup,
    ForkRank,
    ForkStore,
    ProcessExited,
    ProcessStarted,
    StoreStarted,
)
from windlass.wire.messages.jobs import NodeTrouble, StartAttempt
from windlass.wire.messages.worlds import (
    EndWorld,
    OpenStore,
    RankEnded,
    StoreReady,
    WorldCleared,
)

SLEEP = ("sleep", "617")
END = EndWorld(world=0, now=False, signal=signal.SIGTERM)


async def until(is_so):
    """Wait until a condition holds, with a deadline."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


class Scene:
    """One node of two ranks, the messages it sends to its lead, and the processes of its ranks by number."""

    def __init__(self, folder, work):
        self.sent = []
        self.ranks: dict[int, subprocess.Popen] = {}
        self.channels: dict[int, RankEnd] = {}
        self._more = asyncio.Event()
        spec = JobSpec(work=work, procs=2, grace_s=60)
        plan = make_plan(spec, job_id="job-1", now_s=0, facts=Facts(environ={}))
        context = AgentContext(
            plan=plan, folder=JobFolder(folder), index=0, run_dir=folder, place=folder / "lead"
        )
        ours, self.server = socket.socketpair()
        forks = ForkServer()
        forks.adopt(ours, 0, ["cloudpickle", "windlass.agent.rank.call_rank"], {})
        self.node = Node(context, forks=forks, send=self._hear)
        if isinstance(work, Calls):
            self.orders = ComputeOrders(self.node)
        else:
            self.orders = JobOrders(self.node)

    def _hear(self, message, _body=b""):
        self.sent.append(message)
        self._more.set()

    def sent_of_kind(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]

    def outcomes(self):
        return {one.outcome.rank: one.outcome for one in self.sent_of_kind(RankEnded)}

    async def wait_for_message(self, kind, num=1):
        while len(self.sent_of_kind(kind)) < num:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 30)
        return self.sent_of_kind(kind)[-1]

    def start(self):
        order = StartAttempt(attempt=0, nodes=[0], address="127.0.0.1", port=1, has_store=False)
        self.node.receive(order)

    def fork(self, *argv):
        """Act as the fork server for one rank."""
        request, fds = read_request(self.server)
        assert isinstance(request, ForkRank)
        out, err, *channel = fds
        rank = subprocess.Popen(argv, stdout=out, stderr=err, start_new_session=True)
        for fd in (out, err):
            os.close(fd)
        if channel:
            self.channels[request.rank] = RankEnd(*channel)
        self.ranks[request.rank] = rank
        started = ProcessStarted(rank=request.rank, attempt=request.attempt, pid=rank.pid)
        send_event(self.server, started)

    async def exit(self, rank):
        """Wait until a rank exits, report it to the node, and return the exit code."""
        process = self.ranks[rank]
        code = await asyncio.wait_for(asyncio.to_thread(process.wait), 30)
        send_event(self.server, ProcessExited(pid=process.pid, code=code))
        return code


# -- jobs --------------------------------------------------------------------------------------


async def job_is_ended(scene):
    scene.start()
    scene.fork(*SLEEP)
    scene.fork(*SLEEP)
    scene.node.receive(END)
    assert [await scene.exit(rank) for rank in (0, 1)] == [-signal.SIGTERM] * 2
    cleared = await scene.wait_for_message(WorldCleared)
    assert (cleared.world, cleared.is_last) == (0, True)
    assert {rank: one.state.value for rank, one in scene.outcomes().items()} == {
        0: "stopped",
        1: "stopped",
    }
    await scene.node.idle()


async def job_is_ended_before_its_ranks_are_forked(scene):
    scene.start()
    scene.node.receive(END.replaced(now=True))
    scene.fork(*SLEEP)
    scene.fork(*SLEEP)
    assert [await scene.exit(rank) for rank in (0, 1)] == [-signal.SIGKILL] * 2
    await scene.wait_for_message(WorldCleared)


async def job_is_hurried_while_ranks_have_their_grace(scene):
    scene.start()
    for _ in range(2):
        scene.fork("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    folder = scene.node.context.folder
    logs = [folder.log(0, rank) for rank in (0, 1)]
    await until(lambda: all(b"up" in log.read_bytes() for log in logs))
    scene.node.receive(END)
    scene.node.stop(now=False, within_s=0.1)
    assert [await scene.exit(rank) for rank in (0, 1)] == [-signal.SIGKILL] * 2
    await scene.wait_for_message(WorldCleared)


async def job_keeps_what_ranks_left_until_it_is_ended(scene):
    left = subprocess.Popen(SLEEP)  # like a daemon that a rank started
    scene.start()
    scene.fork("true")
    scene.fork("true")
    assert [await scene.exit(rank) for rank in (0, 1)] == [0, 0]
    await scene.wait_for_message(RankEnded, 2)
    assert {one.state.value for one in scene.outcomes().values()} == {"returned"}
    await scene.node.idle()
    assert (scene.sent_of_kind(WorldCleared), left.poll()) == ([], None)
    scene.node.receive(END)
    await scene.wait_for_message(WorldCleared)
    assert await asyncio.wait_for(asyncio.to_thread(left.wait), 30) == -signal.SIGKILL
    scene.node.receive(END)  # the node answers the order each time
    scene.node.stop(now=False)
    assert [one.is_last for one in scene.sent_of_kind(WorldCleared)] == [True] * 3


async def job_loses_its_fork_server(scene):
    scene.node.receive(OpenStore(number=0, framework="pytorch", address="127.0.0.1", port=0))
    assert isinstance(read_request(scene.server)[0], ForkStore)
    scene.start()
    scene.fork(*SLEEP)
    await until(lambda: scene.node.worlds[0].ranks.live[0].pid is not None)
    scene.server.close()
    trouble = await scene.wait_for_message(NodeTrouble)
    assert trouble.reason == names.REASON_FORK_SERVER_DIED
    ends = {rank: (one.state.value, one.signal) for rank, one in scene.outcomes().items()}
    assert ends == {0: ("killed", signal.SIGKILL), 1: ("exited", None)}
    assert scene.sent_of_kind(StoreReady) == [StoreReady(number=0, port=0)]


async def job_ends_with_its_store(scene):
    scene.node.receive(OpenStore(number=0, framework="pytorch", address="127.0.0.1", port=0))
    read_request(scene.server)
    scene.node.receive(END)  # before the store was forked, and before any rank
    await scene.wait_for_message(WorldCleared)
    store = subprocess.Popen(SLEEP)
    send_event(scene.server, StoreStarted(attempt=0, pid=store.pid))
    assert await asyncio.wait_for(asyncio.to_thread(store.wait), 30) == -signal.SIGKILL


# -- computes ----------------------------------------------------------------------------------


def fork_world(scene, number, *, keep=True):
    about = CallRankSetup(
        framework="spmd", keep=keep, start="fork", cwd="", root="", paths=[], peer_wait_s=1.0
    )
    nodes = scene.node.context.plan.nodes
    scene.node.receive(ForkWorld(world=number, nodes=nodes, preload=[], env={}, about=about))
    scene.fork(*SLEEP)
    scene.fork(*SLEEP)


def make_call(number):
    return RunCall(
        id="call-1",
        world=number,
        name="f",
        method="",
        sizes=[],
        collect="all",
        stream=False,
        reload=False,
        is_watched=False,
        sources={},
        meeting={},
        part=0,
    )


async def compute_ends_one_world_of_two(scene):
    fork_world(scene, 3)
    first, scene.ranks, scene.channels = (scene.ranks, scene.channels), {}, {}
    fork_world(scene, 4)
    scene.node.receive(make_call(4))
    scene.channels[0].send(CallAnswer(call="call-1"))
    answer = await scene.wait_for_message(CallAnswer)
    assert (answer.rank, answer.call) == (0, "call-1")
    scene.node.receive(END.replaced(world=4, now=True))
    assert await scene.exit(1) < 0  # the rank that was in the call
    ended = await scene.wait_for_message(RankEnded)
    assert (ended.outcome.rank, ended.outcome.state.value) == (1, "stopped")
    assert (ended.given, ended.answered) == ("call-1", "")
    scene.channels[0].wait_for_hangup(30)  # the other rank only learns that no call will come
    assert scene.ranks[0].poll() is None
    scene.ranks[0].terminate()
    await scene.exit(0)
    cleared = await scene.wait_for_message(WorldCleared)
    assert (cleared.world, cleared.is_last) == (4, False)
    assert len(scene.sent_of_kind(RankEnded)) == 1
    scene.node.receive(make_call(4))
    assert (await scene.wait_for_message(WorldAbsent)).world == 4
    scene.ranks, scene.channels = first
    assert [rank.poll() for rank in scene.ranks.values()] == [None, None]
    scene.node.stop(now=False)
    for rank in (0, 1):
        scene.channels[rank].wait_for_hangup(30)
        scene.ranks[rank].terminate()
        await scene.exit(rank)
    cleared = await scene.wait_for_message(WorldCleared, 2)
    assert (cleared.world, cleared.is_last) == (3, True)


SCENES = {
    scene.__name__: scene
    for scene in (
        job_is_ended,
        job_is_ended_before_its_ranks_are_forked,
        job_is_hurried_while_ranks_have_their_grace,
        job_keeps_what_ranks_left_until_it_is_ended,
        job_loses_its_fork_server,
        job_ends_with_its_store,
        compute_ends_one_world_of_two,
    )
}


async def main(name: str, folder: Path) -> None:
    work = Calls() if name.startswith("compute") else Command(argv=SLEEP)
    await SCENES[name](Scene(folder, work))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
