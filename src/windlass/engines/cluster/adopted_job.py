"""Adopted job, created with kubectl or an operator's SDK: status and logs from its object and pods.

It has no agent, so its ranks are unknown and it has no results. Its log lines are those of its pods,
merged by time. Timestamps identify lines that were already read. The dialect determines which pods
belong to the job. Nothing about it is stored on this machine.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from windlass import names
from windlass.engines.cluster.job_watch import JobBlockers, JobWatch
from windlass.engines.dialects.dialect import Dialect, ObjectEnd, ObjectPhase
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound
from windlass.kube.diagnosis.pod_endings import PodIndexes, read_dead_pods, timeline
from windlass.kube.objects.fields import Object, created_s, log_container_of, name_of
from windlass.wire.log_lines import LogLine, LogQuery, read_line_time
from windlass.wire.states import MomentName, NodeState
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Moment,
    NodeStatus,
    Phase,
    Verdict,
)

logger = logging.getLogger(__name__)

_EVERY_S = 1.0  # interval between requests while a client follows the logs
_OVERLAP_S = 30.0  # largest expected difference between clocks of this machine and the nodes
_MAX_BYTES = 64 << 20
_SETTLE_S = 5.0
_NODE_STATES: Mapping[str, NodeState] = MappingProxyType(
    {"Running": NodeState.JOINED, "Succeeded": NodeState.LEFT, "Failed": NodeState.LEFT}
)


class AdoptedLogs:
    """Lines of a job's pods that match a query. A pod counts as one rank with one stream."""

    def __init__(
        self,
        api: Api,
        find_pods: Callable[[], Mapping[int, Object]],
        query: LogQuery,
        *,
        container: str,
    ) -> None:
        self._api = api
        self._find_pods = find_pods
        self._query = query
        self._container = container
        self._read_s: dict[str, float] = {}  # time of the last line, by pod name
        self._asked_s = -_EVERY_S

    def read_all(self) -> Iterator[LogLine]:
        yield from self._read()

    def read_new(self) -> list[LogLine]:
        if time.monotonic() - self._asked_s < _EVERY_S:
            return []
        return self._read()

    def read_rest(self) -> list[LogLine]:
        """Return the lines that were written since the last read."""
        return self._read()

    def _read(self) -> list[LogLine]:
        self._asked_s = time.monotonic()
        wanted = (self._query.rank, self._query.node)
        pods = {
            index: pod
            for index, pod in self._find_pods().items()
            if all(one in (None, index) for one in wanted)
        }
        lines = [self._read_pod(index, pod) for index, pod in pods.items()]
        return [
            line
            for line in heapq.merge(*lines, key=lambda line: line.at_s)
            if self._query.matches(line)
        ]

    def _read_pod(self, index: int, body: Object) -> list[LogLine]:
        pod = name_of(body)
        last_s = self._read_s.get(pod)
        try:
            log = self._api.read_log(
                pod,
                container=log_container_of(body, self._container),
                timestamps=True,
                since_s=None if last_s is None else max(0.0, time.time() - last_s) + _OVERLAP_S,
                limit_bytes=_MAX_BYTES,
                is_retried=False,
            )
        except Forbidden:
            raise
        except ClusterError as error:  # it has not started, or was deleted
            logger.debug("the log of %s: %s", pod, error)
            return []
        lines = []
        for line in log.split(b"\n"):  # not splitlines: a carriage return does not end a line
            when, _, data = line.partition(b" ")
            at_s = read_line_time(when)
            if at_s is None or (last_s is not None and at_s <= last_s):
                continue
            self._read_s[pod] = at_s
            text = data.decode("utf-8", "backslashreplace").rpartition("\r")[2]
            lines.append(
                LogLine(at_s=at_s, node=index, rank=index, attempt=0, stream="stdout", text=text)
            )
        return lines


def find_adopted(api: Api, kinds: Sequence[Dialect], name: str) -> AdoptedJob | None:
    """Return the job with this name, from the first of these kinds that has one."""
    for dialect in kinds:
        with contextlib.suppress(NotFound, Forbidden):
            return AdoptedJob(api, dialect, name)
    return None


class AdoptedJob:
    """Job that Windlass did not create, read through watches of its object and its pods."""

    def __init__(self, api: Api, dialect: Dialect, name: str) -> None:
        self._api = api
        self._name = name
        self._job: Object = api.get(dialect.kind, name)
        self._numbers: dict[
            str, int
        ] = {}  # assigned indexes, by pod name, of pods without their own
        self._dialect = dialect = self._adopt(dialect)
        labels = dialect.adoption.pod_labels(name) if dialect.adoption else None
        self._watch = JobWatch(api, dialect, name, labels)
        self._blockers = JobBlockers(dialect, self._watch)
        self._cancelled_why = ""
        self._watch.wait(_SETTLE_S)

    def _adopt(self, dialect: Dialect) -> Dialect:
        """Return the dialect with the index rules of this object. Windlass must not end its pods."""
        adoption = dialect.adoption
        if adoption is None:
            return dialect
        owns = adoption.owns
        return replace(
            dialect,
            index_of=lambda pod: adoption.index_of(self._job, pod),
            owns=dialect.owns if owns is None else lambda pod, _uid: owns(self._job, pod),
            end_lost_pod=None,
        )

    def cancel(self, *, now: bool, why: str, interrupt: bool) -> None:  # noqa: ARG002 - there is no lead
        """Delete the object and its pods, with their own grace period. Keep an ended job and its logs."""
        if self._dialect.read_end(self._watch.job or self._job) is not None:
            return
        self._cancelled_why = why or "cancelled by a client"
        self._api.delete(self._dialect.kind, self._name)

    def remove(self) -> None:
        """Delete the object of the ended job."""
        self._watch.close()
        self._api.delete(self._dialect.kind, self._name)

    def find_lead(self) -> str:
        """Return the name of node 0's pod, or an empty string while it is not running."""
        return self._watch.snapshot().lead

    def hold_lease(self, held: bool) -> None:
        """Do nothing, because the job's owner decides about its lifetime."""

    def logs(self, query: LogQuery) -> AdoptedLogs:
        return AdoptedLogs(self._api, self._find_newest, query, container=self._dialect.container)

    def status(self) -> JobStatus:
        """Return the current status from the watches."""
        job = self._watch.job
        self._job = job or self._job
        newest, end = self._find_newest(), self._dialect.read_end(self._job)
        phase = self._find_phase(newest, end, is_there=job is not None)
        status = JobStatus(
            job_id=self._name,
            name=self._name,
            engine=self._dialect.name,
            work=f"{self._dialect.kind.name} {self._name}",
            phase=phase,
            num_nodes=self._dialect.num_pods(self._job),
            num_ranks=self._dialect.num_pods(self._job),
            detach=True,
            created_at_s=created_s(self._job),
            ended_at_s=self._find_end_s(phase, end),
            nodes=tuple(_make_node(index, pod) for index, pod in sorted(newest.items())),
            timeline=self._find_moments(),
        )
        adopted = self._make_condition(phase, newest)
        if phase.is_final:
            return replace(status, conditions=(adopted,), verdict=self._make_verdict(phase, end))
        return replace(status, conditions=(adopted, *self._blockers.read().conditions))

    def _find_newest(self) -> dict[int, Object]:
        """Return the newest pod of each index, assigning free indexes to pods without one."""
        pods = sorted(self._watch.pods, key=lambda pod: (created_s(pod), name_of(pod)))
        indexes = [(self._dialect.index_of(pod), pod) for pod in pods]
        taken = {index for index, _ in indexes if index is not None}
        here = {name_of(pod) for index, pod in indexes if index is None}
        self._numbers = {name: at for name, at in self._numbers.items() if name in here}
        free = (at for at in itertools.count(1) if at not in {*taken, *self._numbers.values()})
        for index, pod in indexes:
            if index is None and name_of(pod) not in self._numbers:
                self._numbers[name_of(pod)] = next(free)
        return {
            self._numbers[name_of(pod)] if index is None else index: pod for index, pod in indexes
        }

    @property
    def _indexes(self) -> PodIndexes:
        own = PodIndexes(of_pod=self._dialect.index_of, of_name=lambda _name: None)
        return own.or_else(self._numbers)

    def _find_phase(
        self, newest: Mapping[int, Object], end: ObjectEnd | None, *, is_there: bool
    ) -> Phase:
        if end is not None:
            return Phase.SUCCEEDED if end.is_complete else Phase.FAILED
        if not is_there:
            return Phase.CANCELLED
        if _count_running(newest):
            return Phase.RUNNING
        has_started = self._dialect.read_phase(self._job) is ObjectPhase.STARTED
        return Phase.STARTING if has_started or newest else Phase.PENDING

    def _find_end_s(self, phase: Phase, end: ObjectEnd | None) -> float | None:
        if not phase.is_final:
            return None
        return (end.at_s if end else None) or time.time()

    def _find_moments(self) -> tuple[Moment, ...]:
        passed = timeline(
            self._watch.pods, indexes=self._indexes, num_nodes=self._dialect.num_pods(self._job)
        )
        return (Moment(name=MomentName.SUBMITTED, at_s=created_s(self._job)), *passed)

    def _make_condition(self, phase: Phase, newest: Mapping[int, Object]) -> Condition:
        mistake = (
            self._dialect.adoption.find_author_mistake(self._job) if self._dialect.adoption else ""
        )
        pods = f"{_count_running(newest)} of {self._dialect.num_pods(self._job)} pods run; "
        return Condition(
            type=phase.value,
            reason=names.REASON_ADOPTED,
            message=f"{'' if phase.is_final else pods}it was not created by Windlass, so only its pods are "
            f"known, and it has no results{f'; {mistake}' if mistake else ''}",
            since_s=created_s(self._job),
        )

    def _make_verdict(self, phase: Phase, end: ObjectEnd | None) -> Verdict | None:
        """Return the verdict from the pods or the object, or None if the job succeeded."""
        if phase is Phase.SUCCEEDED:
            return None
        if phase is Phase.CANCELLED:
            gone = f"its {self._dialect.kind.name} was deleted from the cluster"
            return Verdict(kind=FailureKind.CANCELLED, message=self._cancelled_why or gone)
        first = next(iter(read_dead_pods(self._watch.pods, indexes=self._indexes)), None)
        if first is None:
            message = end.message if end else ""
            return Verdict(kind=FailureKind.UNKNOWN, message=message, next=self._next)
        return Verdict(
            kind=first.ending.kind,
            message=first.ending.message,
            node=first.index,
            node_name=first.name,
            at_s=first.ended_s or 0.0,
            exit_code=first.ending.exit_code,
            next=self._next,
        )

    @property
    def _next(self) -> str:
        return f"windlass logs {self._name} -e {self._dialect.name}"


def _make_node(index: int, pod: Object) -> NodeStatus:
    state = _NODE_STATES.get(_phase_of(pod), NodeState.PENDING)
    host = pod.get("spec", {}).get("nodeName", "")
    return NodeStatus(index=index, name=name_of(pod), state=state, host=host)


def _count_running(newest: Mapping[int, Object]) -> int:
    return sum(_phase_of(pod) == "Running" for pod in newest.values())


def _phase_of(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))
