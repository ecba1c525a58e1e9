"""Recovery of a job whose lead cannot report: how it ended, why nodes were lost, what its logs hold.

The lead cannot know why a node was lost, and may be gone before it reports the end. The cluster's
objects show the reasons, and the logs of the pods hold the job's last files. Claims no more than
they show.
"""

from __future__ import annotations

import collections
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass import names, records
from windlass.engines.cluster.job_watch import JobWatch
from windlass.errors import ProtocolError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound
from windlass.kube.diagnosis.blocker import CONDITION, Blocker
from windlass.kube.diagnosis.pod_endings import DeadPod, PodIndexes, read_dead_pods
from windlass.kube.objects.fields import container_of, name_of
from windlass.plan.plan import Plan
from windlass.trusted import make_own
from windlass.wire.file_sync import is_from_lead
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.last_word import LastWord, num_lines, read_last_word
from windlass.wire.log_lines import read_pod_log
from windlass.wire.status import Condition, FailureKind, JobStatus, Phase, Verdict, make_job_verdict
from windlass.wire.status_file import read_status, render_status

_ENDING_S = 120.0  # how far apart a loss and a pod's end may be to be the same
_EXPLAINING = (FailureKind.OUT_OF_MEMORY, FailureKind.LOST_NODE)
_PHASES: Mapping[FailureKind, Phase] = {
    FailureKind.CANCELLED: Phase.CANCELLED,
    FailureKind.UNKNOWN: Phase.ENDED,
}
_KEEP = (
    "to keep an outcome, stay attached (windlass run), look at a detached job before its pods go "
    "(windlass status), or have the code write to a volume (--volume)"
)
logger = logging.getLogger(__name__)

# A verb answers within ten seconds, whatever nodes do: with what is known, and what is not.
_TOLD_S, _UNTOLD_S = 4.0, 1.0
_ALL_S = 5.0
_FIRST_S = 0.7  # of many nodes none answers for so long only if none will
_FEW = 64
_NUM_THREADS = 16
_MAX_LOG_BYTES = 64 << 20  # nodes keep ten megabytes of a pod's log, unless somebody changed that
_MAX_LOGS = 10_000  # ranks and attempts in one pod


def is_unexplained(verdict: Verdict) -> bool:
    return verdict.kind is FailureKind.LOST_NODE and verdict.node is not None


def explain_loss(verdict: Verdict, dead: tuple[DeadPod, ...]) -> Verdict:
    """The same verdict with what took the node away, where pods that ended near it tell."""
    if not is_unexplained(verdict):
        return verdict
    near = [
        pod
        for pod in dead
        if pod.index == verdict.node and _seconds_apart(pod, verdict) < _ENDING_S
    ]
    if not near:
        return verdict
    pod = min(near, key=lambda pod: (_seconds_apart(pod, verdict), -(pod.created_s or 0.0)))
    # that it was ended by a signal is no more than its lead knew
    if pod.ending.message in verdict.message or pod.ending.kind not in _EXPLAINING:
        return verdict
    message = f"{verdict.message.partition(':')[0]}: {pod.ending.message}"
    return replace(verdict, kind=pod.ending.kind, message=message)


def _seconds_apart(pod: DeadPod, verdict: Verdict) -> float:
    """Between a pod's end and a loss. Not always is its time told: that of an evicted one may be missing."""
    if pod.ended_s is not None:
        return abs(pod.ended_s - verdict.at_s)
    return 0.0 if pod.created_s is not None and pod.created_s <= verdict.at_s else _ENDING_S


class UntoldEnd:
    """The judge of one job: what it sees of it is what the watch does."""

    def __init__(self, plan: Plan, kind: str, watch: JobWatch, indexes: PodIndexes) -> None:
        self._plan = plan
        self._kind = kind
        self._watch = watch
        self._indexes = indexes

    def judge_ended(self, status: JobStatus) -> JobStatus:
        """The main object is over, and its last word is not to be had: what its pods show."""
        at_s = self._watch.ended_at_s
        if self._watch.has_completed:
            return self._end(status, FailureKind.UNKNOWN, self._describe_lost_outcome(), at_s=at_s)
        events = self._watch.read_events()
        dead = read_dead_pods(self._watch.all_pods, events, indexes=self._indexes)
        message = (dead[-1].ending.message if dead else "") or "its pods failed and are gone"
        if not dead:
            told = self._watch.describe_failure()
            message = f"{message} ({told})" if told else message
            return self._end(status, FailureKind.LOST_NODE, message, at_s=at_s)
        last = dead[-1]
        if said := self._watch.read_last_line(last.name):
            message = f"{message}: {said}"
        return self._end(status, last.ending.kind, message, node=last.index, at_s=at_s)

    def judge_deleted(self, status: JobStatus, cancelled_why: str) -> JobStatus:
        """The main object is gone; `cancelled_why` is empty where nobody here asked for that."""
        if not cancelled_why and self._watch.has_completed:
            return self._end(status, FailureKind.UNKNOWN, self._describe_lost_outcome())
        message = cancelled_why or f"its {self._kind} was deleted from the cluster"
        return self._end(status, FailureKind.CANCELLED, message)

    def judge_late(self, status: JobStatus, limit_s: float) -> JobStatus:
        """Its lead was not there in time."""
        blocked = next((c for c in status.conditions if c.type == CONDITION), None)
        message = f"it had no nodes after {limit_s:g} s (--join-timeout)"
        if blocked is not None:
            message = f"{message}: {blocked.message}"
        ended = self._end(status, FailureKind.START_FAILED, message)
        return _advise(ended, blocked.hint if blocked else "")

    def judge_unstartable(self, status: JobStatus, blocker: Blocker) -> JobStatus:
        """Its image lacks the interpreter, so every pod will: no use in trying until its budget is spent."""
        return _advise(self._end(status, FailureKind.START_FAILED, blocker.message), blocker.hint)

    def _describe_lost_outcome(self) -> str:
        leads = self._watch.list_leads()
        if leads:
            return f"how it ended stands in the log of pod {name_of(leads[-1])}, which cannot be read now"
        return "it ran to its end, but how it ended is gone with its pods"

    def _end(
        self,
        status: JobStatus,
        kind: FailureKind,
        message: str,
        *,
        node: int | None = None,
        at_s: float | None = None,
    ) -> JobStatus:
        """The last status of a job that ended like this."""
        at_s = at_s or time.time()
        phase = _PHASES.get(kind, Phase.FAILED)
        verdict = make_job_verdict(
            self._plan, kind, message, at_s=at_s, attempt=status.attempt, node=node
        )
        if kind is FailureKind.UNKNOWN:
            verdict = replace(verdict, next=_KEEP)
        reason = verdict.reason
        condition = Condition(type=phase.value, reason=reason, message=message, since_s=at_s)
        return replace(
            status,
            phase=phase,
            verdict=verdict,
            ended_at_s=at_s,
            ranks=status.lose_ranks(),
            conditions=(*status.conditions, condition),
        )


def _advise(status: JobStatus, hint: str) -> JobStatus:
    """The last status of a job that was blocked: its verdict says what to do about that."""
    if status.verdict is None or not hint:
        return status
    return replace(status, verdict=replace(status.verdict, next=hint))


def show_ending(status: JobStatus, *, at_s: float) -> JobStatus:
    """A job that has ended, while what it left is still on its way: it waits for nothing else."""
    if status.phase.is_final or status.phase is Phase.STOPPING:
        return status
    condition = Condition(
        type=Phase.STOPPING.value,
        reason=names.REASON_OUTCOME_UNKNOWN,
        message="it has ended; what it left is being read",
        since_s=at_s,
    )
    return replace(status, phase=Phase.STOPPING, conditions=(*status.conditions, condition))


def read_leftovers(
    api: Api,
    plan: Plan,
    pods: Sequence[dict[str, Any]],
    folder: JobFolder,
    *,
    leads: Sequence[dict[str, Any]],
    container: str = names.CONTAINER,
) -> None:
    """Fill `folder` with node 0's last word, and note whose lines have not been read: see `read_unread`.

    `leads` are the pods that were node 0, oldest first; `container` is what ours is called in them.
    """
    logger.debug("%s has ended: reading the log of node 0", plan.job_id)
    for pod in reversed(leads):
        if _take_last_word(api, pod, plan, folder, container):
            break
    unread = json.dumps([name_of(pod) for pod in pods])
    write_atomically(folder.path / names.UNREAD_FILE, unread.encode())


def has_unread(folder: JobFolder) -> bool:
    """Whether there are pods whose lines have not been read."""
    return (folder.path / names.UNREAD_FILE).exists()


def read_unread(
    api: Api,
    folder: JobFolder,
    *,
    container: str = names.CONTAINER,
    num_threads: int = _NUM_THREADS,
) -> None:
    """Lines of ranks, from the logs of all pods that were not read yet, in seconds whatever nodes answer.

    Pods that cannot be read now are asked again the next time; one that is gone is not.
    """
    file = folder.path / names.UNREAD_FILE
    pods = [str(pod) for pod in records.parse(file.read_bytes(), file.name)]
    is_patient = len(pods) <= _FEW
    unread, why = set(pods), ""
    answers = _ask_all(
        api, pods, container, num_threads, first_s=_ALL_S if is_patient else _FIRST_S
    )
    for pod, said in answers:
        if isinstance(said, Forbidden):
            raise said  # to say that the job left nothing would be wrong
        if isinstance(said, bytes):
            _take_lines(said, folder)
        else:
            why = said.message
        if isinstance(said, (bytes, NotFound)):
            unread.discard(pod)
    if why or unread:
        logger.warning(
            "the logs of %s pods cannot be read (%s); what they wrote is missing here",
            f"{len(unread)} of {len(pods)}" if unread else "some",
            why or "their nodes do not answer",
        )
    if unread:
        write_atomically(file, json.dumps(sorted(unread)).encode())
    else:
        file.unlink()


def _ask_all(
    api: Api, pods: Sequence[str], container: str, num_threads: int, *, first_s: float
) -> Iterator[tuple[str, bytes | ClusterError]]:
    """Each pod's log or why not, as they come, until the time is over; at once if no node answers at all."""
    waiting, answers = (
        queue.SimpleQueue[str](),
        queue.SimpleQueue[tuple[str, bytes | ClusterError]](),
    )
    end_s = time.monotonic() + _ALL_S
    for pod in pods:
        waiting.put(pod)

    def ask() -> None:
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                pod = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                log = api.read_log(
                    pod, container=container, timestamps=True, limit_bytes=_MAX_LOG_BYTES,
                    timeout_s=left_s, is_patient=False,
                )  # fmt: skip
                answers.put((pod, log))
            except ClusterError as error:
                answers.put((pod, error))

    for _ in range(min(num_threads, len(pods))):
        threading.Thread(target=ask, name="windlass-logs", daemon=True).start()
    give_up_s = time.monotonic() + first_s
    for _ in pods:
        try:
            pod, said = answers.get(timeout=max(0.0, give_up_s - time.monotonic()))
        except queue.Empty:
            return
        if isinstance(said, bytes):
            give_up_s = end_s
        yield pod, said


def _take_last_word(
    api: Api, pod: dict[str, Any], plan: Plan, folder: JobFolder, container: str
) -> bool:
    # an agent that leaves a last word leaves a message, too: without one a moment must do
    is_told = bool((container_of(pod).get("state", {}).get("terminated") or {}).get("message"))
    timeout_s = _TOLD_S if is_told else _UNTOLD_S
    last_word = _find_last_word(api, name_of(pod), container, timeout_s=timeout_s)
    if last_word is None or (status := _read_status(last_word, plan)) is None:
        return False
    files = {**last_word.files, names.STATUS_FILE: render_status(status)}
    if last_word.omitted:
        write_atomically(folder.path / names.OMITTED_FILE, json.dumps(last_word.omitted).encode())
    # the status last: a reader that has seen a final one has everything it speaks of
    for path, data in sorted(files.items(), key=lambda file: file[0] == names.STATUS_FILE):
        target = folder.path / path
        if is_from_lead(path) and (path == names.STATUS_FILE or len(data) > _size(target)):
            make_own(target.parent, below=folder.path)
            write_atomically(target, data, is_durable=True)
    return True


def _read_status(word: LastWord, plan: Plan) -> JobStatus | None:
    """The status of this job in it, if there is one: anything in a pod can write such lines."""
    try:
        status = read_status(word.files[names.STATUS_FILE])
    except (KeyError, ProtocolError) as error:
        logger.warning("the last word in the log of node 0 is ignored: %s", error)
        return None
    return replace(status, work=plan.work.label) if status.job_id == plan.job_id else None


def _find_last_word(api: Api, pod: str, container: str, *, timeout_s: float) -> LastWord | None:
    """It is the end of the log, and says itself how many lines it has."""
    try:
        end = api.read_log(
            pod, container=container, tail_lines=50, limit_bytes=_MAX_LOG_BYTES,
            timeout_s=timeout_s, is_patient=False,
        )  # fmt: skip
        wanted = num_lines(end)
        if wanted > 50:
            end = api.read_log(
                pod, container=container, tail_lines=wanted + 50, limit_bytes=_MAX_LOG_BYTES
            )
    except Forbidden:
        raise
    except ClusterError as error:  # which says nothing about the others
        logger.info("the log of %s: %s", pod, error)
        return None
    return read_last_word(end)


def _take_lines(log: bytes, folder: JobFolder) -> None:
    records_by_log: dict[tuple[int, int], list[bytes]] = collections.defaultdict(list)
    for rank, attempt, record in read_pod_log(log):
        if len(records_by_log) < _MAX_LOGS or (attempt, rank) in records_by_log:
            records_by_log[attempt, rank].append(record)
    for (attempt, rank), lines in records_by_log.items():
        target = folder.log(attempt, rank)
        if (
            not target.exists()
        ):  # one that was copied from the node is more exact, if perhaps shorter
            make_own(target.parent, below=folder.path)
            write_atomically(target, *lines)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
