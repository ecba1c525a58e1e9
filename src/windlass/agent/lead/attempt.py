"""One attempt: what nodes report about its ranks, which rank failed first, and the resulting verdict.

An attempt belongs to a job, or is the part of a call that runs on one world. Reports from earlier
attempts are ignored. Verdicts are pure functions of the outcomes of ranks and the state of nodes. This
module writes the status but sends no orders. The leads decide how to handle a failure.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.world import Changes
from windlass.errors import StepFailed
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import Plan
from windlass.processes import signal_name
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import RankStarted
from windlass.wire.messages.ranks import RankDone, RankReport, RankRunning
from windlass.wire.messages.worlds import RankEnded
from windlass.wire.results import ErrorInfo, Outcome
from windlass.wire.states import MomentName, RankState
from windlass.wire.status import FailureKind, Verdict, cut_text

_STEP_FAILED = f"{StepFailed.__module__}.{StepFailed.__qualname__}"
_ASKED_TO_END = 128 + signal.SIGTERM  # exit code of programs that handle SIGTERM and exit
_MAX_MESSAGE = 200
_MAX_NAMED = 8


def choose_first(plan: Plan, outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the first failure. A rank that only lost a peer is chosen only if no other rank failed."""
    failures = [outcome for outcome in outcomes if outcome.is_failure]
    return min(failures, key=lambda o: (is_consequence(plan, o), o.at_s, o.rank), default=None)


def is_consequence(plan: Plan, outcome: Outcome) -> bool:
    """Return whether the framework considers this failure a consequence of another rank's failure."""
    error = outcome.error
    return error is not None and load_framework(plan.framework).is_consequence(error)


def make_verdict(
    plan: Plan,
    outcomes: Iterable[Outcome],
    *,
    attempt: int,
    running: int = 0,
    returned: Collection[int] = (),
) -> Verdict | None:
    """Return the verdict on one attempt, or None if no rank failed.

    `returned` holds the ranks whose work has returned, with or without an outcome.
    """
    outcomes = list(outcomes)
    first = choose_first(plan, outcomes)
    if first is None:
        return None
    node = plan.node_of(first.rank)
    others: Counter[str] = Counter(o.state for o in outcomes if o.rank != first.rank)
    if running:
        others[RankState.RUNNING] += running
    error = first.error
    gone = {o.rank for o in outcomes if o.state == RankState.RETURNED} | set(returned)
    note = _describe_returned(first.rank, gone) if is_consequence(plan, first) else ""
    message = _describe(first, node.name, _memory_limit(plan))
    return Verdict(
        kind=_classify(first),
        message=f"{message}; {note}" if note else message,
        rank=first.rank,
        node=node.index,
        node_name=node.name,
        attempt=attempt,
        at_s=first.at_s,
        exception=error.text if error else "",
        file=error.file if error else "",
        line=error.line if error else 0,
        source=error.source if error else "",
        exit_code=first.exit_code,
        signal=_name_signal(first),
        others=dict(others),
        note=note,
        next=_next_step(plan, first),
    )


def _describe_returned(rank: int, returned: Collection[int]) -> str:
    """Return a note that names the ranks that had returned when `rank` lost its peer.

    Usually `rank` called a collective that the other ranks did not call.
    """
    others = sorted(set(returned) - {rank})
    if not others:
        return ""
    named = ", ".join(map(str, others[:_MAX_NAMED]))
    more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
    ranks = f"{'rank' if len(others) == 1 else 'ranks'} {named}{more}"
    gone = f"{ranks} had already returned when rank {rank} lost its peer"
    return f"{gone}: do all ranks call the same collectives?"


def _classify(outcome: Outcome) -> FailureKind:
    if outcome.state == RankState.LOST:
        return FailureKind.LOST_NODE
    if outcome.out_of_memory or (outcome.error and _is_memory_error(outcome.error.type)):
        return FailureKind.OUT_OF_MEMORY
    if outcome.state == RankState.KILLED or _was_asked_to_end(outcome):
        return FailureKind.KILLED
    if _never_started(outcome):
        return FailureKind.START_FAILED
    if outcome.error is not None and outcome.error.type == _STEP_FAILED:
        return FailureKind.STEP_FAILED
    return FailureKind.USER_ERROR


def _name_signal(outcome: Outcome) -> str:
    if _was_asked_to_end(outcome):
        return signal.SIGTERM.name
    return signal_name(outcome.signal) if outcome.signal else ""


def _was_asked_to_end(outcome: Outcome) -> bool:
    """Return whether a rank handled SIGTERM and then exited by itself."""
    return outcome.state == RankState.EXITED and outcome.exit_code == _ASKED_TO_END


def _never_started(outcome: Outcome) -> bool:
    return outcome.state == RankState.EXITED and outcome.exit_code is None and outcome.error is None


def _is_memory_error(type_name: str) -> bool:
    return type_name.rpartition(".")[2] in ("MemoryError", "OutOfMemoryError")


def _memory_limit(plan: Plan) -> str:
    """Return the memory limit of a pod, or an empty string if there is none."""
    return "" if plan.pod is None else plan.pod.memory


def _describe(outcome: Outcome, node_name: str, memory: str) -> str:
    subject = f"rank {outcome.rank} on {node_name}"
    if outcome.state == RankState.LOST:
        why = f": {outcome.note}" if outcome.note else ""
        return f"{node_name} (rank {outcome.rank}) was lost{why}"
    if outcome.out_of_memory:
        if memory:
            return f"{subject} exceeded the memory limit of its node, {memory}, and was killed (--memory)"
        return f"{subject} was killed because the machine ran out of memory"
    if outcome.signal:
        return f"{subject} was killed by {signal_name(outcome.signal)}"
    error = outcome.error
    where = f" at {error.file}:{error.line}" if error and error.file else ""
    if _was_asked_to_end(outcome):
        why = f": {text}" if error and (text := _exit_text(error)) else ""
        return f"{subject} exited on SIGTERM{why}"
    if error is not None and error.text and not error.type.endswith("SystemExit"):
        return f"{subject} raised {cut_text(error.text.splitlines()[0], _MAX_MESSAGE)}{where}"
    if _never_started(outcome):
        return (
            f"{subject} never started: its fork server died (see agent-N.log in the job's folder)"
        )
    if outcome.exit_code == 0:
        return f"{subject} exited with code 0 before its work returned (os._exit?)"
    why = f": {text}" if error and (text := _exit_text(error)) else ""
    return f"{subject} exited with code {outcome.exit_code}{why}{where}"


def _exit_text(error: ErrorInfo) -> str:
    """Return the text that `sys.exit` was called with, or an empty string if it got an exit code."""
    first = cut_text(error.message.strip().partition("\n")[0], _MAX_MESSAGE)
    is_code = first.lstrip("-").isdigit() or first in ("True", "False")
    return "" if is_code else first


def _next_step(plan: Plan, outcome: Outcome) -> str:
    if outcome.error is not None and outcome.error.type.endswith("ModuleNotFoundError"):
        missing = outcome.error.message.rpartition("'")[0].rpartition("'")[2]
        python = plan.python or "python"
        if missing:
            return f"{python} -m pip install {missing.partition('.')[0]}"
    return f"windlass logs {plan.job_id} --rank {outcome.rank}"


class StopRequest:
    """Request to stop all ranks. The first reason counts. Later requests can only make the stop immediate."""

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.signal: int = signal.SIGTERM
        self.now = False

    def request(self, verdict: Verdict, *, now: bool, signum: int) -> bool:
        """Request that the attempt stop. Return True if this is the first request for an immediate stop."""
        if self.verdict is None:
            self.verdict, self.signal = verdict, signum
        is_first_immediate = now and not self.now
        self.now |= now
        return is_first_immediate

    @property
    def is_requested(self) -> bool:
        return self.verdict is not None

    def choose(self, verdict: Verdict | None) -> Verdict | None:
        """Return `verdict` if its failure came before the request, otherwise the verdict of the request."""
        if self.verdict is None or (verdict is not None and verdict.at_s <= self.verdict.at_s):
            return verdict
        return self.verdict


SETTLE_S = 0.3  # how long to wait, before a verdict, for reports of earlier failures


class Attempt:
    """One generation of all ranks. `world` is the plan, limited to the nodes that take part."""

    def __init__(self, number: int, world: Plan) -> None:
        self.number = number
        self.world = world
        self.num_ranks = world.num_ranks
        self.has_failure = False
        self.outcomes: dict[int, Outcome] = {}
        self.exited: set[int] = set()
        self.running: set[int] = set()
        self.done: set[int] = set()  # ranks whose work has returned and that wait for their peers
        self._broken: Verdict | None = None

    def add(self, outcome: Outcome, *, exited: bool) -> bool:
        """Record how a rank ended. Return False if it belongs to another attempt."""
        if outcome.attempt != self.number or not 0 <= outcome.rank < self.num_ranks:
            return False
        known = self.outcomes.get(outcome.rank)
        # the failure that a rank reported is more informative than its exit code
        if known is None or not known.is_failure:
            self.outcomes[outcome.rank] = outcome
            self.has_failure |= outcome.is_failure
        if exited:
            self.exited.add(outcome.rank)
        return True

    def lose_node(
        self, index: int, note: str, *, is_partitioned: bool = False
    ) -> Iterable[Outcome]:
        """Yield LOST outcomes for the ranks of a lost node that had not exited yet.

        If the node was cut off while other ranks still work, its exited ranks count as lost too. The
        node may be part of another lead's next attempt.
        """
        is_missed = is_partitioned and not self.is_done
        for node in self.world.nodes:
            if node.index != index:
                continue
            for rank in node.ranks:
                if is_missed or rank not in self.exited:
                    yield Outcome(
                        rank=rank,
                        attempt=self.number,
                        state=RankState.LOST,
                        at_s=time.time(),
                        note=note,
                    )

    def fail(self, verdict: Verdict) -> None:
        """Fail the attempt for a cause outside its ranks. Later rank errors count as consequences."""
        self._broken = self._broken or verdict
        self.has_failure = True

    @property
    def is_done(self) -> bool:
        return len(self.exited) == self.num_ranks

    @property
    def are_all_done(self) -> bool:
        """True if the work of every rank has returned or failed."""
        return len(self.done | self.exited | self.outcomes.keys()) == self.num_ranks

    @property
    def has_only_consequences(self) -> bool:
        """True if every failed rank only lost a peer, so that the cause is still unknown."""
        if self._broken is not None:
            return False
        first = choose_first(self.world, self.outcomes.values())
        return first is not None and is_consequence(self.world, first)

    async def wait_for_cause(
        self, changed: Changes, should_stop: Callable[[], bool], *, timeout_s: float
    ) -> None:
        """Wait for the root cause, as long as every failed rank only lost its connection to a peer.

        Call this before stopping any rank, because a stopped rank can no longer report what it raised.
        `should_stop` ends the wait early.
        """
        await changed.wait_until(
            lambda: not self.has_only_consequences or should_stop(), timeout_s=timeout_s
        )

    def make_verdict(self) -> Verdict | None:
        """Return the verdict on the first failure, or None if nothing failed."""
        if self._broken is not None:
            return self._broken
        running = self.num_ranks - len(self.outcomes)
        return make_verdict(
            self.world,
            self.outcomes.values(),
            attempt=self.number,
            running=running,
            returned=self.done,
        )


class RankHandlers:
    """Message handlers for reports about ranks. Only reports about `attempt` count."""

    def __init__(self, attempt: Attempt, status_writer: StatusWriter) -> None:
        self.attempt = attempt
        self._status_writer = status_writer
        self.handlers: Handlers = {
            RankStarted: self._take_started,
            RankRunning: self._take_running,
            RankDone: self._take_done,
            RankEnded: lambda _index, message, _body: self.take(
                message.outcome, exited=message.exited
            ),
            RankReport: self._take_report,
        }

    def take(self, outcome: Outcome, *, exited: bool) -> None:
        """Record how a rank ended. With `exited`, its process has exited. Otherwise the rank reported it."""
        attempt = self.attempt
        if attempt.add(outcome, exited=exited) and (exited or outcome.is_failure):
            self._status_writer.set_rank(outcome.rank, state=attempt.outcomes[outcome.rank].state)

    def _take_started(self, _index: int, message: RankStarted, _body: bytes) -> None:
        if message.rank < self.attempt.num_ranks:
            self._status_writer.set_rank(message.rank, pid=message.pid, state=RankState.RUNNING)

    def _take_running(self, _index: int, message: RankRunning, _body: bytes) -> None:
        if message.attempt != self.attempt.number:
            return
        self.attempt.running.add(message.rank)
        if len(self.attempt.running) == self.attempt.num_ranks:
            self._status_writer.mark(MomentName.RANKS_RUNNING, message.at_s)

    def _take_done(self, _index: int, message: RankDone, _body: bytes) -> None:
        if message.attempt == self.attempt.number and message.rank < self.attempt.num_ranks:
            self.attempt.done.add(message.rank)
            self._status_writer.set_rank(message.rank, state=RankState.RETURNED)

    def _take_report(self, _index: int, message: RankReport, _body: bytes) -> None:
        if message.attempt == self.attempt.number:
            self._status_writer.report(message)
