"""Each rule for the status of a job on a cluster, and their order, without a cluster or a clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kube.fake_cluster import make_fake_job, make_fake_pod
from kube.plans import make_pod_plan

from windlass import names
from windlass.engines.cluster import job_rules
from windlass.engines.cluster.job_observation import (
    ClientFacts,
    ConnectionFacts,
    FoundBlockers,
    JobSnapshot,
    Observation,
    Outage,
    PodEndings,
    describe_api_outage,
    describe_disk_outage,
)
from windlass.engines.cluster.job_rules import Action, Lookup, Rule, Ruling, judge
from windlass.engines.dialects.dialect import Dialect, ObjectEnd
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.errors import EngineError
from windlass.kube.client.api_errors import ClusterError, Forbidden, Unreachable
from windlass.kube.diagnosis.blocker import START_ERROR, Blocker, make_condition
from windlass.kube.diagnosis.pod_endings import DeadPod, PodIndexes, read_ending
from windlass.plan.plan import Plan
from windlass.spec.work import Calls
from windlass.wire.states import MomentName, NodeState
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Moment,
    NodeStatus,
    Phase,
    Verdict,
    make_first_status,
)

MADE_S = 1_769_860_800.0  # 2026-01-31T12:00:00Z, when all objects were created
NOW_S = MADE_S + 600.0
PLAN = make_pod_plan(nodes=2)
SINGLE = make_pod_plan()
JOB = make_fake_job(PLAN.job_id)
ENDED = ObjectEnd(is_complete=True, at_s=NOW_S - 60.0)
GONE = ClusterError("no such kind")  # permanent
AWAY = Unreachable("cannot reach it")  # retryable
DENIED = Forbidden("may not forward", hint="ask for it")
EXPIRED = EngineError("the certificates are not valid", hint="start it again")
BLOCKER = Blocker(reason=START_ERROR, message="no python3 in it", since_s=1.0, hint="--python")
RUNNING = {"running": {"startedAt": "2026-01-31T12:00:00Z"}}
LEFT = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-31T12:05:00Z"}}
KILLED = {"terminated": {"exitCode": 137, "finishedAt": "2026-01-31T12:05:00Z"}}


def watch(*pods: Any, **facts: Any) -> JobSnapshot:
    """Return a snapshot of a listed job with these pods."""
    leads = tuple(pod for pod in pods if KUBERNETES.index_of(pod) == 0)
    running = tuple(
        pod for pod in leads if "running" in pod["status"]["containerStatuses"][0]["state"]
    )
    known = {"is_listed": True, "job": JOB, "pods": pods, "leads": leads, "running_leads": running}
    return JobSnapshot(**{**known, **facts})


def observe(
    snapshot: JobSnapshot | None = None,
    *,
    plan: Plan = PLAN,
    dialect: Dialect = KUBERNETES,
    status: Mapping[str, Any] | None = None,
    connection: Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Observation:
    first = replace(make_first_status(plan), created_at_s=MADE_S)
    indexes = PodIndexes(of_pod=KUBERNETES.index_of, of_name=lambda _name: None)
    return Observation(
        plan=plan,
        dialect=dialect,
        indexes=indexes,
        status=replace(first, **(status or {})),
        watch=snapshot or watch(),
        connection=ConnectionFacts(**(connection or {})),
        client=ClientFacts(**(client or {})),
        **{"now_s": NOW_S, **facts},
    )


def rule_on(rule: Rule, observation: Observation) -> Ruling | None:
    return rule(observation, observation.status)


def get_ruling(rule: Rule, observation: Observation) -> Ruling:
    ruling = rule_on(rule, observation)
    assert ruling is not None
    return ruling


def list_reasons(status: JobStatus) -> list[str]:
    return [condition.reason for condition in status.conditions]


def make_dead(pod: Any) -> DeadPod:
    ending = read_ending(pod)
    assert ending is not None
    return DeadPod(index=1, name=pod["metadata"]["name"], ending=ending, created_s=MADE_S)


LEAD = make_fake_pod("pod-0", **RUNNING)
LEFT_LEAD = make_fake_pod("pod-0", **LEFT)
DEAD = make_fake_pod("pod-1", 1, **KILLED)
UP = {"is_up": True, "is_synced": True}


# -- snapshots -----------------------------------------------------------------------------------


def test_job_with_a_running_lead_has_not_ended() -> None:
    assert not watch(LEAD, end=ENDED).has_ended
    assert watch(end=ENDED).has_ended
    assert watch(LEFT_LEAD).has_ended
    assert not watch().has_ended


@pytest.mark.parametrize(("code", "has_completed"), [(0, True), (100, True), (1, False)])
def test_two_exit_codes_are_regular(code: int, has_completed: bool) -> None:
    lead = make_fake_pod("pod-0", terminated={"exitCode": code})
    assert watch(lead).has_completed is has_completed
    assert watch(lead, was_completed=True).has_completed


def test_end_is_the_earlier_of_two_times() -> None:
    assert watch(LEFT_LEAD, end=ENDED).ended_at_s == MADE_S + 300.0
    assert watch(end=ENDED).ended_at_s == NOW_S - 60.0
    assert watch().ended_at_s is None
    assert observe().ended_at_s == NOW_S


def test_only_a_failed_object_has_a_failure() -> None:
    assert watch(end=ObjectEnd(is_complete=False, message="too often")).failure == "too often"
    assert watch(end=ObjectEnd(is_complete=True, message="fine")).failure == ""


# -- decisions -----------------------------------------------------------------------------------


def test_accept_reported_end() -> None:
    ended = observe(status={"phase": Phase.SUCCEEDED})
    assert get_ruling(job_rules.accept_reported_end, ended).is_last
    assert rule_on(job_rules.accept_reported_end, observe()) is None


def test_wait_for_first_lists() -> None:
    rule, half = job_rules.wait_for_first_lists, watch(is_listed=False)
    assert rule_on(rule, observe()) is None
    ruling = get_ruling(rule, observe(half, client={"is_visit": True}))
    assert ruling.is_last
    assert ruling.status.conditions[-1] == Condition(
        type="warning", reason=names.REASON_UNSEEN, message=job_rules.UNSEEN, since_s=NOW_S
    )
    submitted = observe(half)
    assert get_ruling(rule, submitted).status == submitted.status
    reached = observe(half, client={"is_visit": True}, connection=UP)
    assert get_ruling(rule, reached).status == reached.status


def test_judge_missing_object() -> None:
    rule = job_rules.judge_missing_object
    assert rule_on(rule, observe()) is None
    assert get_ruling(rule, observe(watch(job=None, error=GONE))).error is GONE
    reached = get_ruling(rule, observe(watch(job=None, error=GONE), connection=UP))
    assert (reached.error, reached.status.phase) == (None, Phase.PENDING)
    waiting = get_ruling(rule, observe(watch(job=None, error=AWAY), client={"is_visit": True}))
    assert waiting.is_last
    assert list_reasons(waiting.status) == [names.REASON_UNSEEN]
    deleted = get_ruling(rule, observe(watch(job=None))).status
    assert (deleted.phase, deleted.ended_at_s) == (Phase.CANCELLED, NOW_S)
    assert deleted.verdict is not None
    assert deleted.verdict.message == "its Job was deleted from the cluster"
    assert list_reasons(deleted) == [names.REASON_CANCELLED]


def test_outcome_of_a_deleted_complete_object_is_unknown() -> None:
    rule, gone = job_rules.judge_missing_object, watch(job=None, was_completed=True)
    ended = get_ruling(rule, observe(gone)).status
    assert (ended.phase, list_reasons(ended)) == (Phase.ENDED, [names.REASON_OUTCOME_UNKNOWN])
    cancelled = get_ruling(rule, observe(gone, client={"cancelled_why": "enough"})).status
    assert cancelled.verdict is not None
    assert (cancelled.phase, cancelled.verdict.message) == (Phase.CANCELLED, "enough")


def test_read_leftovers() -> None:
    rule, ended = job_rules.read_leftovers, watch(end=ENDED)
    assert get_ruling(rule, observe(ended)).lookup is Lookup.LEFTOVERS
    assert rule_on(rule, observe(ended, client={"has_leftovers": True})) is None
    assert rule_on(rule, observe(watch(LEAD, end=ENDED))) is None
    assert rule_on(rule, observe(watch(end=ENDED, error=AWAY))) is None


def test_wait_for_late_status() -> None:
    rule = job_rules.wait_for_late_status
    fresh = watch(end=ObjectEnd(is_complete=True, at_s=NOW_S - job_rules.LEFTOVERS_S + 0.5))
    ruling = get_ruling(rule, observe(fresh))
    assert ruling.is_last
    assert ruling.status.phase is Phase.STOPPING
    assert (
        ruling.status.conditions[-1].message
        == "it has ended; its last status and results are being read"
    )
    stopping = observe(fresh, status={"phase": Phase.STOPPING})
    assert get_ruling(rule, stopping).status == stopping.status
    assert rule_on(rule, observe(watch(end=ENDED))) is None
    assert rule_on(rule, observe()) is None


def test_judge_completed() -> None:
    rule = job_rules.judge_completed
    ended = get_ruling(rule, observe(watch(LEFT_LEAD))).status
    assert ended.verdict is not None
    assert ended.verdict.kind is FailureKind.UNKNOWN
    assert "the log of pod pod-0, which cannot be read now" in ended.verdict.message
    assert ended.verdict.next.startswith("to keep a job's outcome, stay attached")
    assert (ended.phase, ended.ended_at_s) == (Phase.ENDED, MADE_S + 300.0)
    gone = get_ruling(rule, observe(watch(was_completed=True, end=ENDED))).status
    assert gone.verdict is not None
    assert gone.verdict.message == "it finished, but its outcome was lost with its pods"
    assert rule_on(rule, observe(watch(end=ENDED))) is None
    assert rule_on(rule, observe()) is None


def test_judge_failed() -> None:
    rule = job_rules.judge_failed
    failed = watch(end=ObjectEnd(is_complete=False, at_s=NOW_S - 60.0, message="too often"))
    assert rule_on(rule, observe()) is None
    assert get_ruling(rule, observe(failed)).lookup is Lookup.POD_ENDINGS
    without_pods = get_ruling(rule, observe(failed, endings=PodEndings())).status
    assert without_pods.verdict is not None
    assert without_pods.verdict.message == "its pods failed and are gone (too often)"
    assert list_reasons(without_pods) == [names.REASON_NODE_LOST]
    endings = PodEndings(dead=(make_dead(DEAD),), last_line="Killed")
    ended = get_ruling(rule, observe(failed, endings=endings)).status
    assert ended.verdict is not None
    assert ended.verdict.message == "pod pod-1 on node n1 was killed by SIGKILL: Killed"
    assert (ended.verdict.node, ended.phase) == (1, Phase.FAILED)


def test_end_unreachable_pods() -> None:
    rule = job_rules.end_unreachable_pods
    assert rule_on(rule, observe(dialect=KUBERNETES)) is None
    ruling = get_ruling(rule, observe(dialect=PYTORCHJOB))
    assert (ruling.actions, ruling.is_last) == ((Action.END_UNREACHABLE_PODS,), False)
    assert rule_on(rule, observe(watch(outage=AWAY), dialect=PYTORCHJOB)) is None


def test_read_leftovers_of_silent_lead() -> None:
    rule, plan = job_rules.read_leftovers_of_silent_lead, make_pod_plan(ttl_s=60.0)
    silent: dict[str, Any] = {"plan": plan, "dialect": RAYCLUSTER}
    assert get_ruling(rule, observe(watch(LEAD), **silent)).lookup is Lookup.LEFTOVERS
    assert rule_on(rule, observe(watch(LEAD), now_s=MADE_S + 30.0, **silent)) is None
    assert rule_on(rule, observe(watch(LEAD), client={"has_leftovers": True}, **silent)) is None
    assert rule_on(rule, observe(watch(LEAD), connection=UP, **silent)) is None
    assert rule_on(rule, observe(watch(), **silent)) is None
    assert rule_on(rule, observe(watch(LEAD), plan=plan, dialect=KUBERNETES)) is None
    forever = make_pod_plan(ttl_s=None)
    assert rule_on(rule, observe(watch(LEAD), plan=forever, dialect=RAYCLUSTER)) is None


def test_delete_cancelled() -> None:
    rule = job_rules.delete_cancelled
    asked = {"cancelled_for_s": 0.1, "cancelled_why": "enough"}
    assert rule_on(rule, observe()) is None
    ruling = get_ruling(rule, observe(client=asked))
    assert (ruling.actions, ruling.is_last) == ((Action.DELETE,), True)
    assert ruling.status.verdict is not None
    assert ruling.status.verdict.message == "enough"
    assert rule_on(rule, observe(watch(LEAD), client=asked)) is None
    late = {**asked, "cancelled_for_s": job_rules.CANCEL_S + 0.1}
    assert get_ruling(rule, observe(watch(LEAD), client=late)).actions == (Action.DELETE,)
    assert rule_on(rule, observe(client=late, connection=UP)) is None


def test_trust_lead() -> None:
    rule, compute = job_rules.trust_lead, make_pod_plan(nodes=2, work=Calls())
    assert rule_on(rule, observe(status={"phase": Phase.RUNNING})) is None
    assert get_ruling(rule, observe(status={"phase": Phase.RUNNING}, connection=UP)).is_last
    assert rule_on(rule, observe(status={"phase": Phase.STARTING}, connection=UP)) is None
    nodes = (NodeStatus(index=0, name="a"), NodeStatus(index=1, name="b", state=NodeState.LOST))
    lacking = {"phase": Phase.RUNNING, "nodes": nodes}
    assert rule_on(rule, observe(plan=compute, status=lacking, connection=UP)) is None
    assert get_ruling(rule, observe(status=lacking, connection=UP)).is_last


def test_fail_without_watch() -> None:
    rule = job_rules.fail_without_watch
    assert get_ruling(rule, observe(watch(error=GONE))).error is GONE
    assert rule_on(rule, observe(watch(error=AWAY))) is None
    assert rule_on(rule, observe(watch(error=GONE), connection=UP)) is None


def test_wait_for_api_server() -> None:
    rule = job_rules.wait_for_api_server
    assert rule_on(rule, observe()) is None
    assert get_ruling(rule, observe(watch(outage=AWAY))).is_last
    assert get_ruling(rule, observe(connection={"unreachable": AWAY})).is_last
    assert rule_on(rule, observe(watch(outage=AWAY), connection=UP)) is None


def test_fail_without_permission() -> None:
    rule = job_rules.fail_without_permission
    assert rule_on(rule, observe()) is None
    assert get_ruling(rule, observe(connection={"forbidden": DENIED})).error is DENIED
    assert rule_on(rule, observe(connection={**UP, "forbidden": DENIED})) is None


def test_add_blockers() -> None:
    rule, blocked = job_rules.add_blockers, FoundBlockers(conditions=(make_condition(BLOCKER),))
    assert get_ruling(rule, observe()).lookup is Lookup.BLOCKERS
    ruling = get_ruling(rule, observe(blockers=blocked))
    assert (list_reasons(ruling.status), ruling.is_last) == ([START_ERROR], False)
    young = MADE_S + job_rules.BLOCKED_AFTER_S - 0.1
    assert rule_on(rule, observe(now_s=young)) is None


def test_warn_of_expired_keys() -> None:
    rule = job_rules.warn_of_expired_keys
    assert rule_on(rule, observe()) is None
    assert rule_on(rule, observe(connection={**UP, "expired": EXPIRED})) is None
    warned = get_ruling(rule, observe(connection={"expired": EXPIRED})).status
    assert list_reasons(warned) == [names.REASON_KEYS_EXPIRED]
    assert warned.conditions[-1].message == "the certificates are not valid; start it again"


def test_warn_of_silent_lead() -> None:
    rule, visit = job_rules.warn_of_silent_lead, {"is_visit": True}
    warned = get_ruling(rule, observe(watch(LEAD), client=visit)).status
    assert list_reasons(warned) == [names.REASON_LEAD_SILENT]
    assert warned.conditions[-1].message.startswith(
        "node 0 (pod pod-0) is running but does not answer"
    )
    assert rule_on(rule, observe(watch(LEAD))) is None
    assert rule_on(rule, observe(watch(), client=visit)) is None
    synced = observe(watch(LEAD), client=visit, connection={"is_synced": True})
    assert rule_on(rule, synced) is None
    expired = observe(watch(LEAD), client=visit, connection={"expired": EXPIRED})
    assert rule_on(rule, expired) is None, "the warning about keys says more"


def test_give_up_unstartable() -> None:
    rule, unstartable = job_rules.give_up_unstartable, FoundBlockers(unstartable=BLOCKER)
    assert rule_on(rule, observe()) is None
    assert rule_on(rule, observe(blockers=FoundBlockers())) is None
    assert rule_on(rule, observe(watch(LEAD), blockers=unstartable)) is None
    ruling = get_ruling(rule, observe(blockers=unstartable))
    assert (ruling.actions, ruling.is_last) == ((Action.GIVE_UP,), True)
    verdict = ruling.status.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.message) == (FailureKind.START_FAILED, "no python3 in it")
    assert verdict.next == "--python"


def test_delete_late() -> None:
    rule, limit = job_rules.delete_late, {"start_timeout_s": 300.0}
    assert rule_on(rule, observe()) is None
    assert rule_on(rule, observe(client=limit, now_s=MADE_S + 299.0)) is None
    assert rule_on(rule, observe(client=limit, connection={"is_synced": True})) is None
    ruling = get_ruling(rule, observe(client=limit))
    assert (ruling.actions, ruling.is_last) == ((Action.DELETE,), True)
    assert ruling.status.verdict is not None
    assert ruling.status.verdict.message == "it had no nodes after 300 s (--join-timeout)"
    blocked = observe(client=limit, status={"conditions": (make_condition(BLOCKER),)})
    verdict = get_ruling(rule, blocked).status.verdict
    assert verdict is not None
    assert verdict.message.endswith("(--join-timeout): no python3 in it")
    assert verdict.next == "--python"


# -- additions -----------------------------------------------------------------------------------


def test_warn_of_forgotten_pods() -> None:
    rule, visit = job_rules.warn_of_forgotten_pods, {"is_visit": True}
    single: dict[str, Any] = {"plan": SINGLE, "dialect": PYTORCHJOB}
    assert rule_on(rule, observe(plan=SINGLE, client=visit)) is None
    assert rule_on(rule, observe(plan=PLAN, dialect=PYTORCHJOB, client=visit)) is None
    assert rule_on(rule, observe(**single)) is None, "this client saw the first pod"
    assert rule_on(rule, observe(watch(job=None), client=visit, **single)) is None
    assert get_ruling(rule, observe(client=visit, **single)).lookup is Lookup.PODS_MADE
    assert rule_on(rule, observe(client=visit, num_pods_made=1, **single)) is None
    by_events = get_ruling(rule, observe(client=visit, num_pods_made=2, **single)).status
    assert list_reasons(by_events) == [names.REASON_LOSS_FORGOTTEN]
    seen = watch(LEAD, gone_pods=(make_fake_pod("pod-before", **KILLED),))
    warned = get_ruling(rule, observe(seen, **single)).status
    assert warned.conditions[-1].since_s == MADE_S
    final = observe(seen, status={"phase": Phase.FAILED}, **single)
    assert rule_on(rule, final) is None


def test_add_moments() -> None:
    known = Moment(name=MomentName.SUBMITTED, at_s=MADE_S)
    both = watch(LEAD, make_fake_pod("pod-1", 1, **RUNNING))
    added = get_ruling(
        job_rules.add_moments, observe(both, status={"timeline": (known,)})
    ).status.timeline
    assert added[:2] == (known, Moment(name=MomentName.QUEUED, at_s=MADE_S))
    again = get_ruling(job_rules.add_moments, observe(both, status={"timeline": added}))
    assert again.status.timeline == added
    late = get_ruling(
        job_rules.add_moments, observe(both, status={"timeline": (), "created_at_s": MADE_S + 0.5})
    )
    assert late.status.timeline[0].at_s == MADE_S + 0.5, "nothing comes before the submission"


def test_explain_losses() -> None:
    rule = job_rules.explain_losses
    lost = Verdict(
        kind=FailureKind.LOST_NODE, message="node 1 was lost", node=1, at_s=MADE_S + 290.0
    )
    evicted = make_fake_pod("pod-1", 1, terminated={"exitCode": 137, "reason": "OOMKilled"})
    evicted["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = (
        "2026-01-31T12:05:00Z"
    )
    seen = watch(gone_pods=(evicted,))
    assert rule_on(rule, observe(seen)) is None
    explained = get_ruling(rule, observe(seen, status={"history": (lost,), "verdict": lost})).status
    assert explained.history == (explained.verdict,)
    assert explained.verdict is not None
    assert explained.verdict.kind is FailureKind.OUT_OF_MEMORY
    assert explained.verdict.message.startswith("node 1 was lost: pod pod-1 on node n1 ran out of")
    later = replace(lost, at_s=MADE_S + 900.0)
    kept = get_ruling(rule, observe(seen, status={"history": (later,)})).status
    assert kept.history == (later,)


def test_keep_end() -> None:
    rule = job_rules.keep_end
    assert rule_on(rule, observe()) is None
    assert get_ruling(rule, observe(status={"phase": Phase.FAILED})).actions == (Action.KEEP,)
    unknown = {"phase": Phase.ENDED}
    assert get_ruling(rule, observe(status=unknown)).actions == (Action.KEEP,)
    assert rule_on(rule, observe(watch(LEFT_LEAD), status=unknown)) is None, "it may be found yet"


def test_delete_kept() -> None:
    rule, ended = job_rules.delete_kept, {"phase": Phase.SUCCEEDED}
    assert rule_on(rule, observe()) is None
    assert rule_on(rule, observe(status=ended)) is None
    assert get_ruling(rule, observe(status=ended, dialect=RAYCLUSTER)).actions == (Action.DELETE,)
    cancelled = observe(status={"phase": Phase.CANCELLED})
    assert get_ruling(rule, cancelled).actions == (Action.DELETE,)
    assert rule_on(rule, observe(dialect=RAYCLUSTER)) is None
    unknown = observe(watch(LEFT_LEAD), dialect=RAYCLUSTER, status={"phase": Phase.ENDED})
    assert rule_on(rule, unknown) is None


# -- order ---------------------------------------------------------------------------------------

ASKED = {"cancelled_for_s": 60.0, "cancelled_why": "enough"}
LIMIT = {"start_timeout_s": 1.0}
READ = {"has_leftovers": True}
FRESH = ObjectEnd(is_complete=True, at_s=NOW_S - 1.0)
UNSTARTABLE = FoundBlockers(conditions=(make_condition(BLOCKER),), unstartable=BLOCKER)

ORDER = {
    "a reported end, before incomplete lists": (
        observe(watch(is_listed=False), status={"phase": Phase.FAILED}),
        job_rules.accept_reported_end,
    ),
    "incomplete lists, before a missing object": (
        observe(watch(is_listed=False, job=None), client=ASKED),
        job_rules.wait_for_first_lists,
    ),
    "a missing object, before what its pods show": (
        observe(watch(LEFT_LEAD, job=None)),
        job_rules.judge_missing_object,
    ),
    "leftovers, before any ruling": (
        observe(watch(LEFT_LEAD, end=FRESH)),
        job_rules.read_leftovers,
    ),
    "a fresh end, before its outcome is called unknown": (
        observe(watch(end=FRESH, was_completed=True), client=READ),
        job_rules.wait_for_late_status,
    ),
    "a completed job, before a failed one": (
        observe(watch(LEFT_LEAD, end=ENDED), client=READ),
        job_rules.judge_completed,
    ),
    "an end, before a cancel": (
        observe(watch(end=ENDED), client={**READ, **ASKED}),
        job_rules.judge_failed,
    ),
    "leftovers of a silent lead, before a cancel deletes them": (
        observe(watch(LEAD), plan=make_pod_plan(ttl_s=60.0), dialect=RAYCLUSTER, client=ASKED),
        job_rules.read_leftovers_of_silent_lead,
    ),
    "a cancel, before a late start": (
        observe(client={**ASKED, **LIMIT}),
        job_rules.delete_cancelled,
    ),
    "a connected lead, before a watch that failed": (
        observe(watch(error=GONE), status={"phase": Phase.RUNNING}, connection=UP),
        job_rules.trust_lead,
    ),
    "a watch that failed, before an API server that is away": (
        observe(watch(error=GONE, outage=GONE)),
        job_rules.fail_without_watch,
    ),
    "an API server that is away, before requests": (
        observe(watch(outage=AWAY), connection={"forbidden": DENIED}, client=LIMIT),
        job_rules.wait_for_api_server,
    ),
    "a missing permission, before blockers": (
        observe(connection={"forbidden": DENIED}, client=LIMIT),
        job_rules.fail_without_permission,
    ),
    "blockers, before a late start that names them": (
        observe(client=LIMIT),
        job_rules.add_blockers,
    ),
    "a start that must fail, before a late one": (
        observe(client=LIMIT, blockers=UNSTARTABLE),
        job_rules.give_up_unstartable,
    ),
    "a late start, last": (
        observe(client=LIMIT, blockers=FoundBlockers()),
        job_rules.delete_late,
    ),
}


@pytest.mark.parametrize(("observation", "last"), ORDER.values(), ids=ORDER)
def test_the_first_rule_that_decides_wins(observation: Observation, last: Rule) -> None:
    status, applied = observation.status, []
    for rule in job_rules.DECISIONS:
        ruling = rule(observation, status)
        if ruling is None:
            continue
        status = ruling.status
        applied.append(rule)
        if ruling.is_last or ruling.lookup or ruling.error:
            break
    assert applied[-1] is last


def test_every_rule_is_in_one_list_and_has_a_test() -> None:
    rules = [rule.__name__ for rule in (*job_rules.DECISIONS, *job_rules.ADDITIONS)]
    assert len(rules) == len(set(rules))
    assert [name for name in rules if f"test_{name}" not in globals()] == []


# -- rulings ----------------------------------------------------------------------------------


def test_running_job_combines_status_of_the_lead_and_moments_of_pods() -> None:
    running = observe(watch(LEAD), status={"phase": Phase.RUNNING}, connection=UP)
    ruling = judge(running)
    assert (ruling.actions, ruling.lookup, ruling.error) == ((), None, None)
    assert ruling.status == replace(running.status, timeline=ruling.status.timeline)


def test_a_lookup_ends_the_rules_and_the_fact_lets_them_continue() -> None:
    late = observe(client=LIMIT)
    assert judge(late).lookup is Lookup.BLOCKERS
    blocked = replace(late, blockers=FoundBlockers(conditions=(make_condition(BLOCKER),)))
    ruling = judge(blocked)
    assert ruling.lookup is None
    assert list_reasons(ruling.status) == [START_ERROR, names.REASON_START_FAILED]
    assert ruling.actions == (Action.DELETE, Action.KEEP)


def test_action_is_requested_once() -> None:
    ruling = judge(observe(client=ASKED, dialect=RAYCLUSTER))
    assert ruling.actions[-2:] == (Action.DELETE, Action.KEEP)
    assert ruling.actions.count(Action.DELETE) == 1


def test_an_error_keeps_the_actions_of_the_rules_before_it() -> None:
    ruling = judge(observe(dialect=PYTORCHJOB, connection={"forbidden": DENIED}))
    assert ruling.error is DENIED
    assert ruling.actions == (Action.END_UNREACHABLE_PODS,)


def test_end_is_stored_before_the_object_is_deleted() -> None:
    ruling = judge(observe(status={"phase": Phase.SUCCEEDED}, dialect=RAYCLUSTER))
    assert ruling.actions == (Action.KEEP, Action.DELETE)


def test_judge_has_no_side_effects() -> None:
    observation = observe(watch(LEFT_LEAD, end=ENDED), client=READ)
    assert judge(observation) == judge(observation)


# -- outages -------------------------------------------------------------------------------------

OUTAGE = Outage(away="Away", back="Back", over="it is back", report_after_s=5.0)


def test_a_short_outage_is_not_reported() -> None:
    over = OUTAGE.update("away", 10.0).update("away", 14.0).update("", 14.5)
    assert over.notes == ()
    assert over == OUTAGE


def test_an_outage_is_reported_once_and_so_is_its_end() -> None:
    away = OUTAGE.update("away", 10.0).update("away", 15.0).update("away", 20.0)
    assert [(note.reason, note.message, note.since_s) for note in away.notes] == [
        ("Away", "away", 10.0)
    ]
    back = away.update("", 22.0).update("", 30.0)
    assert [(note.reason, note.message, note.since_s) for note in back.notes[1:]] == [
        ("Back", "it is back after 12 s", 22.0)
    ]


def test_only_the_newest_notes_of_outages_are_shown() -> None:
    outage = OUTAGE
    for at_s in range(0, 200, 20):
        outage = (
            outage.update("away", at_s + 1.0).update("away", at_s + 10.0).update("", at_s + 12.0)
        )
    assert [note.reason for note in outage.notes] == ["Away", "Back"] * 2


def test_outage_descriptions() -> None:
    assert describe_api_outage(observe()) == ""
    away = observe(connection={"unreachable": AWAY})
    assert describe_api_outage(away) == (
        "cannot reach it; the job continues, and this client keeps trying"
    )
    assert describe_api_outage(observe(watch(outage=AWAY), connection=UP)) == ""
    full = EngineError("cannot write", hint="make room")
    assert describe_disk_outage(observe(connection={"cannot_keep": full})) == (
        "cannot write; make room; this client keeps trying"
    )
    assert describe_disk_outage(observe()) == ""


def test_the_clock_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_no_clock() -> float:
        raise AssertionError("a rule reads the clock")

    observation = observe(client=LIMIT, blockers=FoundBlockers())
    monkeypatch.setattr(time, "time", read_no_clock)
    monkeypatch.setattr(time, "monotonic", read_no_clock)
    ruling = judge(observation)
    monkeypatch.undo()
    assert ruling.status.ended_at_s == NOW_S
