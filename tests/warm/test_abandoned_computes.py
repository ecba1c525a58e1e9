"""Compute that cannot start: it keeps its place while a client waits for it, and expires afterwards."""

from __future__ import annotations

import time

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt
from windlass import names
from windlass.client.compute.nodes.find_computes import list_living
from windlass.kube.objects.kinds import JOBS, PODS

pytestmark = pytest.mark.cluster_only

NO_ROOM = {"gpus": 4096, "inactivity_ttl": 100}


def find_place(on, name: str) -> list[int | None]:
    """Return until when each compute of that name keeps its place, or None if it has no such annotation."""
    found = on.space.api.list(JOBS, labels=f"{names.LABEL_NAME}={name}")
    places = [job["metadata"]["annotations"].get(names.ANNOTATION_KEEP_PLACE) for job in found]
    return [None if place is None else int(place) for place in places]


def has_pods(on, name: str) -> bool:
    return bool(on.space.api.list(PODS, labels=f"{names.LABEL_NAME}={name}"))


def test_abandoned_compute_is_deleted(on, make, start_client):
    compute = make(**NO_ROOM)
    code = f"kt.Compute(**{compute.keywords!r}).up()"
    client = start_client(make(), code)
    wait_for(lambda: has_pods(on, compute.name), "its pods are pending")
    client.kill()
    (until_s,) = find_place(on, compute.name)
    assert until_s is not None
    assert until_s > time.time() + 900, "launch_timeout and inactivity_ttl"
    wanted = compute.nodes().wanted
    (living,) = [one for one in list_living(wanted) if one.name == compute.name]
    assert living.state == "starting"

    # another client waits for it, but with a short timeout
    with pytest.raises(kt.EngineError, match="launch_timeout"):
        make(**{**compute.keywords, "launch_timeout": 3}).up()
    (renewed_s,) = find_place(on, compute.name)
    assert renewed_s is not None
    assert renewed_s < until_s

    past = {"metadata": {"annotations": {names.ANNOTATION_KEEP_PLACE: "1"}}}
    on.space.api.patch(JOBS, living.ref.job_id, past)
    assert compute.name not in [one.name for one in list_living(wanted)]
    labels = f"{names.LABEL_JOB}={living.ref.job_id}"
    wait_for(lambda: not on.space.find_objects(labels), "all its objects are deleted")


def test_running_compute_has_no_expiry(on, make):
    compute = make()
    assert kt.fn(tasks.whoami).to(compute)()["rank"] == 0
    assert find_place(on, compute.name) == [None]
