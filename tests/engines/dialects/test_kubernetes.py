"""Rendering and reading of Indexed Jobs."""

from __future__ import annotations

from typing import Any

import pytest
from kube.plans import FILES, make_pod_plan
from kube.storing_cluster import merge
from windlass_statefulset import STATEFUL_SET

from windlass.engines.dialects.dialect import ObjectEnd, ObjectPhase, read_condition_end
from windlass.engines.dialects.kubernetes import KUBERNETES, index_in_name, read_phase
from windlass.engines.engine_table import engine_names, find_dialect, load_dialect

AT = "1970-01-01T00:01:40Z"


def make_job(*conditions: dict[str, Any], suspend: bool = False, **counts: int) -> dict[str, Any]:
    rendered = [
        {"status": "True", "lastTransitionTime": AT, **condition} for condition in conditions
    ]
    return {"spec": {"suspend": suspend}, "status": {"conditions": rendered, **counts}}


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (make_job(), None),
        (make_job({"type": "Complete", "status": "False"}), None),
        (make_job({"type": "Complete"}), ObjectEnd(is_complete=True, at_s=100.0)),
        (
            make_job({"type": "Failed", "reason": "BackoffLimitExceeded", "message": "too many"}),
            ObjectEnd(is_complete=False, at_s=100.0, message="BackoffLimitExceeded: too many"),
        ),
        ({}, None),
    ],
)
def test_its_end(job, end):
    assert read_condition_end(job) == end


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (make_job(suspend=True), ObjectPhase.HELD),
        (make_job(active=2, ready=0), ObjectPhase.WAITING),
        (make_job(ready=1), ObjectPhase.STARTED),
        (make_job(failed=1), ObjectPhase.STARTED),
        (make_job({"type": "Complete"}, succeeded=1), ObjectPhase.ENDED),
    ],
)
def test_its_phase(job, phase):
    assert read_phase(job) is phase


@pytest.mark.parametrize(
    ("pod", "index"),
    [
        ("train-ab2cd-0-x7k2p", 0),
        ("train-ab2cd-12-x7k2p", 12),
        ("train-ab2cd-x7k2p", None),
        ("other-ab2cd-0-x7k2p", None),
        ("train-ab2cd-0", None),
        ("", None),
    ],
)
def test_index_from_the_name_of_a_deleted_pod(pod, index):
    assert index_in_name(pod, "train-ab2cd") == index


def test_rendered_suspended_and_changed_by_patches():
    job = KUBERNETES.render(make_pod_plan(nodes=2), FILES.names, "a mark")
    assert read_phase(job) is ObjectPhase.HELD
    started = merge(job, KUBERNETES.start)
    assert read_phase(started) is ObjectPhase.WAITING
    assert merge(started, KUBERNETES.suspend) == job
    assert KUBERNETES.num_pods(merge(job, KUBERNETES.resize(5))) == 5


def test_rights_include_the_kind_and_the_common_ones():
    own, *others = KUBERNETES.rights
    assert (own.group, own.resource) == ("batch", "jobs")
    theirs, lease, *same = STATEFUL_SET.rights
    assert (theirs.group, theirs.resource) == ("apps", "statefulsets")
    assert (lease.group, lease.resource, lease.optional) == ("batch", "jobs", True)
    assert same == others


def test_dialects_are_found_by_name():
    for name in filter(find_dialect, engine_names()):
        assert load_dialect(name).name == name
