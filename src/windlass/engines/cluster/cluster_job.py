"""One job on a cluster as this client sees it: what its lead reported, and what the API server shows.

Read often and cheap: threads below keep the folder and the watched objects up to date. While there
is no lead, pods and events say how far the job is and what blocks it. Once the lead is gone,
`job_recovery` tells how the job ended. A node 0 or an API server that does not answer is a warning
in the status.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace

from windlass import names
from windlass.engines.cluster.job_recovery import (
    UntoldEnd,
    explain_loss,
    is_unexplained,
    read_leftovers,
    read_unread,
    show_ending,
)
from windlass.engines.cluster.job_watch import PATIENCE_S, JobBlockers, JobWatch, UnreachablePods
from windlass.engines.cluster.lead_sync import LeadSync, keeping, make_dial
from windlass.engines.cluster.lease_object import LeaseRenewal, delete_lease, keeps_lease
from windlass.engines.dialects.dialect import Dialect
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.diagnosis.pod_endings import PodIndexes, read_dead_pods, timeline
from windlass.kube.objects.fields import created_s, started_s
from windlass.kube.objects.manifests import pod_of
from windlass.plan.plan import Plan
from windlass.spec.work import Calls
from windlass.waiting import wait_until
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.states import MomentName, NodeState
from windlass.wire.status import Condition, JobStatus, Moment, Phase
from windlass.wire.status_file import StatusFile, make_first_status, render_status

UNSEEN = "the API server has not said yet where its pods are: this is what was known before"
_KEPT = 4
logger = logging.getLogger(__name__)

_SETTLE_S = 5.0  # a verb answers within ten seconds
_CANCEL_S = 5.0  # how long a lead that cannot be reached is given before its Job is deleted
_AWAY_S = 5.0  # an API server that is away for less is not worth a word
_JOB_GRACE_S = 3.0  # a Job may end a moment before its last word has been read


# For moments of the same second, which is as fine as the API server's clock is.
_ORDER = {name: at for at, name in enumerate(MomentName)}


def describe_silence(lead: str) -> str:
    return (
        f"node 0 (pod {lead}) runs but does not answer: its ranks, progress and lines are not known"
    )


def describe_forgotten(kind: str) -> str:
    return (
        f"its pod was made again: on a {kind} of one node nothing remembers what was before, so it began as "
        "attempt 0 once more, and --node-restarts does not count it; --timeout bounds it"
    )


def add_warning(
    status: JobStatus, reason: str, message: str, *, since_s: float | None = None
) -> JobStatus:
    """The status with one thing more that is so, since then or now."""
    at_s = time.time() if since_s is None else since_s
    condition = Condition(type="warning", reason=reason, message=message, since_s=at_s)
    return replace(status, conditions=(*status.conditions, condition))


class Outage:
    """One thing that is there or not."""

    def __init__(self, *, away: str, back: str, over: str, patience_s: float) -> None:
        self._away, self._back = away, back  # reasons
        self._over = over  # what is said when it is over
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._is_said = False
        self._notes: list[Condition] = []

    def look(self, trouble: str) -> tuple[Condition, ...]:
        """What to tell, given what is wrong now; nothing is an empty text."""
        now_s = time.time()
        if trouble:
            self._since_s = self._since_s or now_s
            if not self._is_said and now_s - self._since_s >= self._patience_s:
                self._is_said = True
                self._note(self._away, trouble, self._since_s)
        elif self._since_s is not None:
            if self._is_said:
                self._note(self._back, f"{self._over} after {now_s - self._since_s:.0f} s", now_s)
            self._since_s, self._is_said = None, False
        return tuple(self._notes)

    def _note(self, reason: str, message: str, since_s: float) -> None:
        note = Condition(type="warning", reason=reason, message=message, since_s=since_s)
        self._notes = [*self._notes, note][-_KEPT:]


class ClusterJob:
    """Threads and a folder; `status` puts them together."""

    def __init__(
        self,
        api: Api,
        dialect: Dialect,
        plan: Plan,
        folder: JobFolder,
        certificates: Mapping[str, bytes],
        *,
        start_timeout_s: float | None = None,
    ) -> None:
        self._api = api
        self._dialect = dialect
        self._told: dict[str, int] = {}  # which node each pod is, by its name, as the lead says
        self._indexes = PodIndexes(
            of_pod=dialect.index_of, of_name=lambda name: dialect.index_in_name(name, plan.job_id)
        ).or_told(self._told)
        self._start_timeout_s = start_timeout_s  # a lead that never starts cannot keep it
        self._plan = plan
        self.folder = folder
        self._status_file = StatusFile(folder.status)
        self._watch = JobWatch(api, dialect, plan.job_id)
        self._connection = LeadSync(
            plan.job_id, folder, certificates, make_dial(api, plan.job_id, self._watch)
        )
        self._renewal = LeaseRenewal(api, plan) if keeps_lease(dialect, plan) else None
        # Nobody closes the handle of a job: its threads end when it is forgotten.
        weakref.finalize(self, _let_go, self._connection, self._watch, self._renewal).atexit = False
        self._cancelled_s: float | None = None
        self._cancelled_why = ""
        self._has_leftovers = False
        self.wants_lines = False  # somebody reads what ranks wrote
        self._may_delete = True
        self._is_visit = False  # of one who did not submit it, and wants an answer soon
        self._api_outage = Outage(
            away=names.REASON_API_AWAY,
            back=names.REASON_API_BACK,
            over="the API server answers again",
            patience_s=_AWAY_S,
        )
        self._disk_outage = Outage(
            away=names.REASON_CANNOT_KEEP,
            back=names.REASON_KEEPS_AGAIN,
            over=f"what comes is written to {folder.path} again",
            patience_s=0.0,
        )
        self._blockers = JobBlockers(dialect, self._watch)
        self._unreachable = UnreachablePods(api, dialect, self._watch)
        self._untold = UntoldEnd(plan, dialect.kind.name, self._watch, self._indexes)

    def close(self) -> None:
        self._connection.close()
        self._watch.close()
        if self._renewal is not None:
            self._renewal.hold(False)

    def let_go(self) -> None:
        """End its threads soon."""
        _let_go(self._connection, self._watch, self._renewal)

    def hold_lease(self, held: bool) -> None:
        self._connection.hold_lease(held)
        if self._renewal is not None:
            self._renewal.hold(held)

    def settle(self) -> None:
        """Wait for the first list of the job's objects, and for its lead's status if it has a lead."""
        end_s = time.monotonic() + _SETTLE_S
        self._is_visit = True
        self._watch.wait(_SETTLE_S)
        error = self._watch.error
        if error is not None and (self._watch.job is None or not error.retryable):
            raise error

        def is_known() -> bool:
            has_lead = self._watch.find_lead() is not None
            connection = self._connection
            has_answered = (
                connection.is_synced.is_set() or connection.forbidden or connection.expired
            )
            return bool(has_answered) or not has_lead or self._watch.has_ended

        wait_until(is_known, timeout_s=max(0.0, end_s - time.monotonic()), every_s=0.02)

    def find_lead(self) -> str | None:
        """The name of node 0's pod, while it runs."""
        return self._watch.find_lead()

    def wait_for_inputs(self, timeout_s: float) -> bool:
        """Until the lead has been reached: what did not fit the Secret has been sent by then."""

        def say(waited_s: float) -> None:
            blocked = "; ".join(condition.text for condition in self._blockers.look())
            logger.warning(
                "%s: what is too large for a Secret is sent when node 0 runs; after %.0f s it does not%s",
                *(self._plan.job_id, waited_s, f": {blocked}" if blocked else ""),
            )

        return wait_until(
            lambda: self._connection.is_synced.is_set() or self.status().phase.is_final,
            timeout_s=timeout_s,
            say=say,
        )

    def cancel(self, *, now: bool, why: str, interrupt: bool = False) -> None:
        """Ask the lead; a job without one is deleted when its status is next looked at."""
        self._cancelled_s = self._cancelled_s or time.monotonic()
        self._cancelled_why = why or "cancelled by a client"
        self._connection.cancel(now=now, why=why, interrupt=interrupt)

    # -- status --------------------------------------------------------------------------------

    def status(self) -> JobStatus:
        """What is known now."""
        status = self._read_status()
        if not status.phase.is_final:
            status = self._add_forgotten(self._look(status))
        status = self._explain(self._add_moments(status))
        if status.phase.is_final:
            self._keep(status)
            self._connection.finish()
        return replace(status, conditions=(*self._note_outages(), *status.conditions))

    def _note_outages(self) -> tuple[Condition, ...]:
        """What this client cannot reach or write: the job goes on, but whoever watches it must know."""
        away, full = self._find_away(), self._connection.cannot_keep
        waits = "the job goes on, and this client waits for it"
        room = f"{full.message}; {full.hint}; it is tried again" if full else ""
        return (
            *self._api_outage.look(f"{away.message}; {waits}" if away else ""),
            *self._disk_outage.look(room),
        )

    def _find_away(self) -> ClusterError | None:
        """Why the API server cannot be asked now; a line that is up goes through it."""
        return None if self._connection.is_up else self._connection.unreachable or self._watch.away

    def _read_status(self) -> JobStatus:
        status = self._status_file.read_known() or make_first_status(self._plan)
        self._told.update({node.pod: node.index for node in status.nodes if node.pod})
        return status

    def _look(self, status: JobStatus) -> JobStatus:
        """A job that its lead has not called ended: what the API server says of it."""
        if not self._watch.wait(0):  # to judge by half of what there is would be wrong
            return self._add_unseen(status)
        if self._watch.job is None:
            self._check_watch()
            if self._watch.error is not None:
                return self._add_unseen(status)
            return self._untold.judge_deleted(status, self._cancelled_why)
        if self._watch.has_ended and self._watch.error is None:
            return self._judge_ended(status)
        self._unreachable.end()
        if self._dialect.stays_up and self._is_past_answering():
            self._take_leftovers()
            status = self._read_status()
            if status.phase.is_final:
                return status
        if self._is_past_cancelling():
            self._delete()
            return self._untold.judge_deleted(status, self._cancelled_why)
        if (
            self._connection.is_up
            and status.phase is not Phase.STARTING
            and not self._lacks_nodes(status)
        ):
            return status
        # a lead that waits for its other nodes cannot know what keeps them
        self._check_watch()
        if self._find_away() is not None:  # each question would wait ten seconds for no answer
            return status
        if self._connection.forbidden is not None and not self._connection.is_up:
            raise self._connection.forbidden
        status = self._add_silence(self._add_blockers(status))
        if self._blockers.unstartable and self._watch.find_lead() is None:
            self._give_up()
            return self._untold.judge_unstartable(status, self._blockers.unstartable)
        limit_s = self._start_timeout_s
        if limit_s is not None and self._is_late(status, limit_s):
            self._delete()
            return self._untold.judge_late(status, limit_s)
        return status

    def _lacks_nodes(self, status: JobStatus) -> bool:
        """Whether a compute, which is up with its first node, has others that are not there."""
        is_compute = isinstance(self._plan.work, Calls)
        return is_compute and any(
            node.state in (NodeState.PENDING, NodeState.LOST) for node in status.nodes
        )

    def _check_watch(self) -> None:
        """Blind for good, and nobody tells: saying so beats waiting for ever."""
        error = self._watch.error
        if error is not None and not error.retryable and not self._connection.is_up:
            raise error

    def _is_past_cancelling(self) -> bool:
        if self._cancelled_s is None or self._connection.is_up:
            return False
        has_lead = self._watch.find_lead() is not None
        return not has_lead or time.monotonic() - self._cancelled_s > _CANCEL_S

    def _is_past_answering(self) -> bool:
        """Whether a lead that runs may have ended its job so long ago that it answers nobody any more."""
        ttl_s, leads = pod_of(self._plan).ttl_s, self._watch.find_leads()
        if ttl_s is None or not leads or self._connection.is_up or self._has_leftovers:
            return False
        return time.time() - (started_s(leads[-1]) or time.time()) > ttl_s

    def _is_late(self, status: JobStatus, limit_s: float) -> bool:
        """Whether its lead should have been there: one that never starts cannot keep the limit itself."""
        return (
            not self._connection.is_synced.is_set() and time.time() - status.created_at_s > limit_s
        )

    def _give_up(self) -> None:
        """Let a job that cannot start fail by itself: a client that looks later finds what its pods show."""
        kind, give_up = self._dialect.kind, self._dialect.give_up
        try:
            if give_up is None:
                self._delete()
            elif give_up:
                name = self._dialect.make_name(self._plan.job_id)
                self._api.patch(kind, name, give_up, brief=True)
        except ClusterError as error:
            logger.debug("no more tries: %s", error)

    def _judge_ended(self, status: JobStatus) -> JobStatus:
        """The Job is over: its last word, or else what its pods show."""
        if not self._has_leftovers:
            self._take_leftovers()
            status = self._read_status()
        at_s = self._watch.ended_at_s
        if status.phase.is_final:
            return status
        if time.time() - at_s < _JOB_GRACE_S:
            return show_ending(status, at_s=at_s)
        return self._untold.judge_ended(status)

    def _take_leftovers(self) -> None:
        """What pods' logs keep of the job: its last word and, where it is asked for, its lines."""
        pods, leads = self._watch.pods, self._watch.list_leads()
        with keeping(self.folder):
            own = self._dialect.container
            read_leftovers(self._api, self._plan, pods, self.folder, leads=leads, container=own)
            if self.wants_lines or self._dialect.stays_up:  # whose pods go with it
                read_unread(self._api, self.folder, container=own)
        self._has_leftovers = True

    def _keep(self, status: JobStatus) -> None:
        """The last status stays here; in the cluster nothing does of a job that was cancelled."""
        data = render_status(status)
        may_be_found_yet = status.phase is Phase.ENDED and bool(self._watch.pods)
        if may_be_found_yet:
            return
        with keeping(self.folder):
            if not self.folder.status.exists() or self.folder.status.read_bytes() != data:
                write_atomically(self.folder.status, data, is_durable=True)
        # what never ends by itself is removed by the client that has all it left
        if status.phase is Phase.CANCELLED or self._dialect.stays_up:
            self._delete()

    def _delete(self) -> None:
        if self._watch.job is None or not self._may_delete:
            return
        try:
            self._api.delete(self._dialect.kind, self._dialect.make_name(self._plan.job_id))
            if self._renewal is not None:
                delete_lease(self._api, self._plan)
        except Forbidden as error:
            self._may_delete = False
            logger.warning("%s stays in the cluster until its ttl: %s", self._plan.job_id, error)
        except ClusterError as error:
            logger.debug("delete: %s", error)

    # -- what the API server adds --------------------------------------------------------------

    def _add_moments(self, status: JobStatus) -> JobStatus:
        num_nodes = self._plan.min_nodes
        known = {moment.name: moment.at_s for moment in status.timeline}
        passed = timeline(
            self._watch.pods,
            indexes=self._indexes,
            num_nodes=num_nodes,
            joined_at_s=known.get(MomentName.NODES_JOINED),
        )
        # the API server's times are whole seconds: nothing comes before it was asked for
        new = [
            Moment(name=moment.name, at_s=max(moment.at_s, status.created_at_s))
            for moment in passed
            if moment.name not in known
        ]
        moments = sorted((*new, *status.timeline), key=lambda m: (m.at_s, _ORDER[m.name]))
        return replace(status, timeline=tuple(moments))

    def _add_blockers(self, status: JobStatus) -> JobStatus:
        if time.time() - status.created_at_s < PATIENCE_S:
            return status
        return replace(status, conditions=(*status.conditions, *self._blockers.look()))

    def _add_unseen(self, status: JobStatus) -> JobStatus:
        """That the API server has not told yet, or not all: what is shown is what was known before."""
        if not self._is_visit or self._connection.is_up:
            return status
        return add_warning(status, names.REASON_UNSEEN, UNSEEN)

    def _add_silence(self, status: JobStatus) -> JobStatus:
        """That node 0 runs and does not answer this client: what is not known must not look like nothing."""
        lead, expired = self._watch.find_lead(), self._connection.expired
        if expired and not self._connection.is_up:
            text = f"{expired.message}; {expired.hint}"
            return add_warning(status, names.REASON_KEYS_EXPIRED, text)
        if lead is None or not self._is_visit or self._connection.is_synced.is_set():
            return status
        return add_warning(status, names.REASON_LEAD_SILENT, describe_silence(lead))

    def _add_forgotten(self, status: JobStatus) -> JobStatus:
        """That the only node had another pod before, where its lead cannot know."""
        reason, is_alone = self._dialect.pod_made, len(self._plan.nodes) == 1
        if status.phase.is_final or not reason or not is_alone:
            return status
        if not self._watch.was_made_again(reason, is_visit=self._is_visit):
            return status
        text = describe_forgotten(self._dialect.kind.name)
        since_s = max(map(created_s, self._watch.pods), default=0.0)
        return add_warning(status, names.REASON_LOSS_FORGOTTEN, text, since_s=since_s)

    def _explain(self, status: JobStatus) -> JobStatus:
        """Why nodes were lost, which their lead cannot know: the cluster does."""
        lost = [v for v in (*status.history, status.verdict) if v is not None and is_unexplained(v)]
        if not lost:
            return status
        dead = read_dead_pods(self._watch.all_pods, indexes=self._indexes)
        history = tuple(explain_loss(verdict, dead) for verdict in status.history)
        verdict = explain_loss(status.verdict, dead) if status.verdict else None
        return replace(status, history=history, verdict=verdict)


def _let_go(connection: LeadSync, watch: JobWatch, renewal: LeaseRenewal | None) -> None:
    connection.let_go()
    watch.close()
    if renewal is not None:
        renewal.hold(False)
