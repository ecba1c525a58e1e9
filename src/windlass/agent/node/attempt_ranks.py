"""Ranks of a job on one node, one attempt at a time.

The node determines the outcome of a rank from its reports, its result file and its exit code. It reports the
outcome to the lead, which decides what to do.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import names, processes
from windlass.agent.node.world_ranks import Echo, LiveRank, WorldRanks, read_error_file
from windlass.errors import ProtocolError
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import RankRendezvous
from windlass.spec.work import Function
from windlass.wire.messages.forkserver import ForkRank
from windlass.wire.messages.jobs import RankStarted, ReleaseRanks, StartAttempt
from windlass.wire.messages.ranks import RankDone, RankRaised
from windlass.wire.messages.worlds import EndWorld, RankEnded
from windlass.wire.rank_reports import release
from windlass.wire.results import Outcome, ResultHeader, read_header
from windlass.wire.states import RankState

if TYPE_CHECKING:
    from windlass.agent.node.node import Node
    from windlass.wire.messages.ranks import RankRunning

logger = logging.getLogger(__name__)


class AttemptRanks:
    """Ranks of one attempt on this node."""

    def __init__(self, node: Node, ranks: WorldRanks) -> None:
        self.ranks = ranks
        self._node = node
        self._send_to_lead = node.send_to_lead
        self._done: set[int] = set()  # ranks that reported their outcome and wait for their peers

    @property
    def is_over(self) -> bool:
        """True once the lead has ordered the end. Other ranks may need leftover processes until then."""
        return self.ranks.stopped_at_s is not None

    def started(self, rank: int, pid: int) -> None:
        self.ranks.started(rank, pid)
        self._send_to_lead(RankStarted(rank=rank, pid=pid))

    def exited(self, rank: LiveRank, code: int) -> None:
        """Report the outcome of a rank whose process has exited or could not be started."""
        self.ranks.remove(rank)
        if rank.pid is None:
            outcome = Outcome(
                rank=rank.number,
                attempt=self.ranks.number,
                state=RankState.EXITED,
                at_s=time.time(),
            )
        else:
            outcome = self._judge(rank, code)
        self._send_to_lead(RankEnded(outcome=outcome))

    def _judge(self, rank: LiveRank, code: int) -> Outcome:
        context = self._node.context
        error_path = context.folder.error(self.ranks.number, rank.number)
        return self.ranks.judge(
            rank,
            code,
            header=self._read_header(context.folder.result(self.ranks.number, rank.number)),
            error=read_error_file(error_path) if code else None,
            needs_result=isinstance(context.plan.work, Function),
        )

    @staticmethod
    def _read_header(path: Path) -> ResultHeader | None:
        try:
            return read_header(path)
        except (OSError, ProtocolError) as error:
            logger.warning("%s: %s", path.name, error)
            return None

    def report(self, message: RankRunning | RankDone | RankRaised) -> None:
        """Forward a report of a rank to the lead."""
        if isinstance(message, RankRaised):
            self._note_done(message.rank)
            outcome, stopped_at_s = message.header.outcome(), self.ranks.stopped_at_s
            if stopped_at_s is None or outcome.at_s < stopped_at_s:
                self._send_to_lead(RankEnded(outcome=outcome, exited=False))
            return
        if isinstance(message, RankDone):
            self._note_done(message.rank)
        self._send_to_lead(message)

    def _note_done(self, rank: int) -> None:
        self._done.add(rank)
        if self.ranks.stopped_at_s is not None:
            self.release_done()

    def release_done(self) -> None:
        """Release the ranks that wait for their peers, so that they exit."""
        for rank in self._done & self.ranks.live.keys():
            release(self._node.context.run_dir, rank=rank, attempt=self.ranks.number)

    def stop(self, order: EndWorld) -> None:
        """Ask every rank to end, except those that are done, which exit by themselves."""
        live = self.ranks.live
        if self.ranks.stopped_at_s is None:
            working = [rank for rank in live.values() if rank.number not in self._done]
            self.ranks.ask_to_end(working, order.signal)
            self.release_done()
        if order.now:
            self.ranks.kill(live.values())
        else:
            self.ranks.kill_after_grace(order.within_s)

    def sweep(self) -> None:
        """Kill processes that the ranks left behind: grandchildren, daemons and their store."""
        processes.kill_descendants(os.getpid(), spare=frozenset({self._node.forks.pid}))

    def close(self) -> None:
        self.ranks.close()


class JobOrders:
    """Handlers for orders that only the lead of a job sends."""

    def __init__(self, node: Node, *, echo: Echo | None = None) -> None:
        self._node = node
        self._echo = node.echo = echo
        self._attempt: AttemptRanks | None = None
        node.take({StartAttempt: self._start, ReleaseRanks: self._release})

    def _start(self, order: StartAttempt, _body: bytes) -> None:
        node, attempt = self._node, order.attempt
        plan, folder = node.context.plan, node.context.folder
        world = plan.on_nodes(order.nodes)
        here = next(one for one in world.nodes if one.index == node.context.index)
        rendezvous = RankRendezvous(
            address=order.address,
            port=order.port,
            has_store=order.has_store,
            secret=order.secret,
            members=tuple(order.members),
        )
        framework = load_framework(plan.framework)
        ranks = node.make_ranks(attempt)
        self._attempt = node.worlds[attempt] = AttemptRanks(node, ranks)
        for rank in here.ranks:
            env = {
                **plan.env,
                **framework.make_env(world, rank, attempt=attempt, rendezvous=rendezvous),
                names.TORCHELASTIC_ERROR_FILE: str(folder.error(attempt, rank)),
            }
            request = ForkRank(
                framework=framework.name,
                rank=rank,
                attempt=attempt,
                env=env,
                plan=str(folder.plan),
            )
            echo = functools.partial(self._echo, rank, attempt) if self._echo else None
            node.start_rank(ranks, request, echo)

    def _release(self, _order: ReleaseRanks, _body: bytes) -> None:
        if self._attempt is not None:
            self._attempt.release_done()
