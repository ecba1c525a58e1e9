"""One job on a cluster as this client knows it, with a folder and the threads that update it.

`status` takes an observation, applies the rules in `job_rules`, and carries out the actions that
they return. It is called often and is cheap, because threads keep the folder and the watched
objects up to date. If node 0 or the API server does not answer, the status has a warning.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace

from windlass import names
from windlass.engines.cluster.job_observation import (
    ClientFacts,
    ConnectionFacts,
    JobSnapshot,
    Observation,
    Outage,
    PodEndings,
    describe_api_outage,
    describe_disk_outage,
)
from windlass.engines.cluster.job_recovery import read_leftovers, read_unread
from windlass.engines.cluster.job_rules import Action, Lookup, judge
from windlass.engines.cluster.job_watch import JobBlockers, JobWatch, UnreachablePods
from windlass.engines.cluster.lead_connection import LeadDial
from windlass.engines.cluster.lead_sync import LeadSync, keeping
from windlass.engines.cluster.lease_object import LeaseRenewal, delete_lease, keeps_lease
from windlass.engines.dialects.dialect import Dialect
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.diagnosis.pod_endings import PodIndexes, read_dead_pods
from windlass.plan.plan import Plan
from windlass.waiting import wait_until
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.status import Condition, JobStatus, StatusFile, make_first_status, render_status

logger = logging.getLogger(__name__)

_SETTLE_S = 5.0  # a command answers within ten seconds
_AWAY_S = 5.0  # a shorter outage of the API server is not reported


class ClusterJob:
    """Job on a cluster. Its threads collect facts, from which `status` derives the status."""

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
        self._pod_nodes: dict[str, int] = {}  # nodes by pod names, as the lead reports them
        self._indexes = PodIndexes(
            of_pod=dialect.index_of, of_name=lambda name: dialect.index_in_name(name, plan.job_id)
        ).or_else(self._pod_nodes)
        self._start_timeout_s = start_timeout_s
        self._plan = plan
        self.folder = folder
        self._status_file = StatusFile(folder.status)
        self._watch = watch = JobWatch(api, dialect, plan.job_id)
        dial = LeadDial(api, plan.job_id, certificates, watch.find_leads, watch.distrust).dial
        self._connection = LeadSync(plan.job_id, folder, dial)
        self._renewal = LeaseRenewal(api, plan) if keeps_lease(dialect, plan) else None
        # Clients do not close job handles, so the threads end when the handle is garbage-collected.
        weakref.finalize(
            self, _release, self._connection, self._watch, self._renewal
        ).atexit = False
        self._cancelled_s: float | None = None
        self._cancelled_why = ""
        self._has_leftovers = False
        self.wants_lines = False  # a client reads the output of ranks
        self._may_delete = True
        self._is_visit = False  # this client did not submit the job, and needs an answer quickly
        self._api_outage = Outage(
            away=names.REASON_API_AWAY,
            back=names.REASON_API_BACK,
            over="the API server answers again",
            report_after_s=_AWAY_S,
        )
        self._disk_outage = Outage(
            away=names.REASON_CANNOT_KEEP,
            back=names.REASON_KEEPS_AGAIN,
            over=f"new data is written to {folder.path} again",
            report_after_s=0.0,
        )
        self._blockers = JobBlockers(dialect, self._watch)
        self._unreachable = UnreachablePods(api, dialect, self._watch)

    def close(self) -> None:
        """End the threads, and wait until the lead has received the last orders."""
        self._connection.close()
        self.release()

    def release(self) -> None:
        """Ask the threads to end, without waiting for them."""
        _release(self._connection, self._watch, self._renewal)

    def hold_lease(self, held: bool) -> None:
        self._connection.hold_lease(held)
        if self._renewal is not None:
            self._renewal.hold(held)

    def settle(self) -> None:
        """Wait for the first list of the job's objects, and for its lead's status if it has a lead."""
        end_s = time.monotonic() + _SETTLE_S
        self._is_visit = True
        self._watch.wait(_SETTLE_S)
        watch = self._watch.snapshot()
        if watch.error is not None and (watch.job is None or not watch.error.retryable):
            raise watch.error

        def has_answer() -> bool:
            connection, watch = self._connection, self._watch.snapshot()
            if connection.is_synced.is_set() or connection.forbidden or connection.expired:
                return True
            return not watch.running_leads or watch.has_ended

        wait_until(has_answer, timeout_s=max(0.0, end_s - time.monotonic()), every_s=0.02)

    def find_lead(self) -> str:
        """Return the name of node 0's pod, or an empty string while it is not running."""
        return self._watch.snapshot().lead

    def wait_for_inputs(self, timeout_s: float) -> bool:
        """Wait until the lead has been reached and has received the inputs that did not fit the Secret."""

        def say(waited_s: float) -> None:
            blocked = "; ".join(condition.text for condition in self._blockers.read().conditions)
            logger.warning(
                "%s: files too large for a Secret are sent once node 0 runs; still waiting after %.0f s%s",
                *(self._plan.job_id, waited_s, f": {blocked}" if blocked else ""),
            )

        return wait_until(
            lambda: self._connection.is_synced.is_set() or self.status().phase.is_final,
            timeout_s=timeout_s,
            say=say,
        )

    def cancel(self, *, now: bool, why: str, interrupt: bool = False) -> None:
        """Ask the lead to cancel. The next `status` deletes a job without a lead."""
        self._cancelled_why = why or "cancelled by a client"
        self._cancelled_s = self._cancelled_s or time.monotonic()
        self._connection.cancel(now=now, why=why, interrupt=interrupt)

    # -- status --------------------------------------------------------------------------------

    def status(self) -> JobStatus:
        """Return the current status, and carry out the actions of the rules."""
        observation = self._observe()
        while (lookup := (ruling := judge(observation)).lookup) is not None:
            observation = self._look_up(lookup, observation)
        status = ruling.status
        for action in ruling.actions:
            self._carry_out(action, status)
        if ruling.error is not None:
            raise ruling.error
        if status.phase.is_final:
            self._connection.finish()
        return replace(status, conditions=(*self._note_outages(observation), *status.conditions))

    def _observe(self) -> Observation:
        """Take an observation. The status is read last, so that it is never older than the other facts."""
        watch, connection = self._watch.snapshot(), self._connection
        connection_facts = ConnectionFacts(
            is_up=connection.is_up,
            is_synced=connection.is_synced.is_set(),
            forbidden=connection.forbidden,
            unreachable=connection.unreachable,
            expired=connection.expired,
            cannot_keep=connection.cannot_keep,
        )
        client = ClientFacts(
            cancelled_for_s=(
                None if self._cancelled_s is None else time.monotonic() - self._cancelled_s
            ),
            cancelled_why=self._cancelled_why,
            is_visit=self._is_visit,
            start_timeout_s=self._start_timeout_s,
            has_leftovers=self._has_leftovers,
        )
        status = self._status_file.read_known() or make_first_status(self._plan)
        self._pod_nodes.update({node.pod: node.index for node in status.nodes if node.pod})
        return Observation(
            plan=self._plan,
            dialect=self._dialect,
            indexes=self._indexes,
            now_s=time.time(),
            status=status,
            watch=watch,
            connection=connection_facts,
            client=client,
        )

    def _look_up(self, lookup: Lookup, observation: Observation) -> Observation:
        """Return the observation with one more fact, which costs requests."""
        if lookup is Lookup.LEFTOVERS:
            self._read_leftovers(observation.watch)
            return self._observe()
        if lookup is Lookup.BLOCKERS:
            return replace(observation, blockers=self._blockers.read())
        if lookup is Lookup.PODS_MADE:
            num_pods_made = self._watch.count_pods_made(self._dialect.pod_made)
            return replace(observation, num_pods_made=num_pods_made)
        pods, events = observation.watch.all_pods, self._watch.read_events()
        dead = read_dead_pods(pods, events, indexes=self._indexes)
        last_line = self._watch.read_last_line(dead[-1].name) if dead else ""
        return replace(observation, endings=PodEndings(dead=dead, last_line=last_line))

    def _read_leftovers(self, watch: JobSnapshot) -> None:
        """Read the last status from the logs of pods and, if needed, the output of ranks."""
        with keeping(self.folder):
            own = self._dialect.container
            read_leftovers(
                self._api, self._plan, watch.pods, self.folder, leads=watch.leads, container=own
            )
            if (
                self.wants_lines or self._dialect.stays_up
            ):  # an object that stays up is deleted with its pods
                read_unread(self._api, self.folder, container=own)
        self._has_leftovers = True

    def _note_outages(self, observation: Observation) -> tuple[Condition, ...]:
        """Return warnings about an unreachable API server or an unwritable folder. The job continues."""
        now_s = observation.now_s
        self._api_outage = self._api_outage.update(describe_api_outage(observation), now_s)
        self._disk_outage = self._disk_outage.update(describe_disk_outage(observation), now_s)
        return (*self._api_outage.notes, *self._disk_outage.notes)

    # -- actions -------------------------------------------------------------------------------

    def _carry_out(self, action: Action, status: JobStatus) -> None:
        if action is Action.KEEP:
            self._keep(status)
        elif action is Action.DELETE:
            self._delete()
        elif action is Action.GIVE_UP:
            self._give_up()
        else:
            self._unreachable.end()

    def _keep(self, status: JobStatus) -> None:
        data = render_status(status)
        with keeping(self.folder):
            if not self.folder.status.exists() or self.folder.status.read_bytes() != data:
                write_atomically(self.folder.status, data, is_durable=True)

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

    def _give_up(self) -> None:
        """Let the object fail by itself, so that later clients find its pods."""
        kind, give_up = self._dialect.kind, self._dialect.give_up
        try:
            if give_up is None:
                self._delete()
            elif give_up:
                name = self._dialect.make_name(self._plan.job_id)
                self._api.patch(kind, name, give_up, brief=True)
        except ClusterError as error:
            logger.debug("no more tries: %s", error)


def _release(connection: LeadSync, watch: JobWatch, renewal: LeaseRenewal | None) -> None:
    connection.let_go()
    watch.close()
    if renewal is not None:
        renewal.hold(False)
