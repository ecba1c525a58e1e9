"""Idle computes that hold what a job waits for: they are named with the command that ends them."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt
from windlass.client.compute.nodes.find_computes import (
    IdleComputes,
    remove_by_call,
    remove_by_command,
)
from windlass.kube.diagnosis import blocker as reasons
from windlass.kube.diagnosis.blocker import Blocker, make_condition
from windlass.kube.objects.kinds import RESOURCE_QUOTAS
from windlass.wire.status import JobStatus

FULL = Blocker(reason=reasons.QUOTA, message="the quota is used up", hint="end other jobs")
NO_ROOM = replace(FULL, reason=reasons.UNSCHEDULABLE, hint=f"{reasons.WHEN_OTHERS_END}; or less")
TOO_BIG = replace(NO_ROOM, hint="no node is large enough")
GPUS = 2


def explain(holders: IdleComputes, waiting: kt.Compute, blocker: Blocker = FULL) -> str:
    """Return the explanation for a compute that waits because of `blocker`."""
    nodes = waiting.nodes()
    assert nodes.ref is not None
    status: JobStatus = nodes.wanted.engine.status(nodes.ref)
    explained = holders.name_in(replace(status, conditions=(make_condition(blocker),)), nodes.ref)
    return explained.conditions[0].text


@pytest.fixture
def waiting(make):
    """Return a running compute that the tests treat as if it had to wait."""
    return make().up()


@pytest.fixture
def holders(waiting):
    wanted = waiting.nodes().wanted
    return IdleComputes(wanted.engine, remove_by_command(wanted.settings))


@pytest.mark.local_only
def test_idle_compute_is_named_with_its_remedy(make, waiting, holders):
    idle = make().up()
    explanation = explain(holders, waiting)
    assert f"1 node is held by your idle compute {idle.name}" in explanation
    assert f" -> `windlass compute rm {idle.name}`" in explanation
    assert explanation.endswith("; or end other jobs")
    assert waiting.name not in explanation
    idle.teardown()
    assert explain(holders, waiting) == explanation, "idle computes are listed once"


@pytest.mark.local_only
def test_idle_compute_is_named_only_if_ending_it_helps(make, waiting, holders):
    idle = make().up()
    assert idle.name not in explain(holders, waiting, TOO_BIG)
    assert idle.name in explain(holders, waiting, NO_ROOM)


@pytest.mark.local_only
def test_busy_compute_is_not_named(make, waiting, holders):
    busy = make()
    call = kt.fn(tasks.sleep).to(busy).submit(600)
    wait_for(lambda: call.status().phase.value == "running", "the call runs")
    assert explain(holders, waiting) == "the quota is used up -> end other jobs"
    call.cancel()


@pytest.mark.local_only
def test_computes_of_other_users_are_not_named(make, waiting, holders, monkeypatch):
    make().up()
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert explain(holders, waiting) == "the quota is used up -> end other jobs"


@pytest.mark.local_only
def test_remedy_includes_the_namespace(on):
    wanted = kt.Compute(name="a", engine="kubernetes", namespace="team", image="i").nodes().wanted
    assert remove_by_command(wanted.settings)("b") == "`windlass compute rm b --namespace team`"
    text = 'windlass.Compute(name="b", namespace="team").teardown()'
    assert remove_by_call(wanted.settings)("b") == text


@pytest.mark.cluster_only
def test_gpus_of_an_idle_compute(on, make, monkeypatch):
    """The printed remedy works as it is, and then the other compute starts."""
    limit = {"hard": {"requests.nvidia.com/gpu": str(GPUS)}}
    quota = {"metadata": {"name": "gpus"}, "spec": limit}
    on.space.api.create(RESOURCE_QUOTAS, quota)
    try:
        wait_for(lambda: _has_quota(on.space.api), "the quota is in effect")
        idle = make(gpus=GPUS, cpus="0.1").up()
        piped = io.StringIO()
        monkeypatch.setattr(sys, "stderr", piped)
        late = make(gpus=GPUS, cpus="0.1", launch_timeout=40)
        with pytest.raises(kt.EngineError) as caught:
            late.up()
        held = f"{GPUS} GPUs are held by your idle compute {idle.name}"
        remedy = f'windlass.Compute(name="{idle.name}").teardown()'
        assert piped.getvalue().count(held) == 1
        assert held in caught.value.message
        assert remedy in caught.value.hint
        monkeypatch.delenv("WINDLASS_IMAGE")  # the remedy must work without an image
        eval(remedy, {"windlass": kt})
        monkeypatch.setenv("WINDLASS_IMAGE", on.space.image)
        again = make(name=late.name, gpus=GPUS, cpus="0.1")
        assert kt.fn(tasks.whoami).to(again)()["rank"] == 0
    finally:
        on.space.api.delete(RESOURCE_QUOTAS, "gpus")


def _has_quota(api) -> bool:
    return any("hard" in quota.get("status", {}) for quota in api.list(RESOURCE_QUOTAS))
