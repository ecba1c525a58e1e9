"""Pods that are no part of a job: they reach none of its ports, and without the policy its lead lets none in.

And keys: in the Secret, as files, each only where it is needed; in no variable, argument or log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from strict_cluster.conftest import TEST_IMAGE
from strict_cluster.ground import Ground, open_ground, wait_for
from strict_cluster.stranger import Stranger, open_stranger

import windlass as wl
from windlass import names
from windlass.kube.kinds import JOBS, NETWORK_POLICIES, PODS, SECRETS, SERVICES

pytestmark = pytest.mark.cluster

AGENT, STORE = 29400, 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """One in the job's own namespace, one in another."""

    near: Stranger
    far: Stranger


@pytest.fixture(scope="module")
def strangers(plain_ground: Ground) -> Iterator[Strangers]:
    with (
        open_ground(TEST_IMAGE, is_strict=False, kind="other") as other,
        open_stranger(plain_ground) as near,
        open_stranger(other) as far,
    ):
        yield Strangers(near=near, far=far)


@pytest.fixture
def job(plain: Ground) -> wl.Job:
    """Two nodes that all-reduce on and on."""
    job = wl.submit("training.py::reduce_on", nodes=2)
    wait_for_steps(job, 3)
    assert {line.text for line in job.logs()} == {f"store at {STORE}"}
    return job


def wait_for_steps(job: wl.Job, num_more: int) -> None:
    """Until the training has gone on by that much."""
    before = job.status().progress.step or 0

    def has_gone_on() -> bool:
        return (job.status().progress.step or 0) >= before + num_more

    wait_for(has_gone_on, f"{num_more} more steps after step {before}")


def find_places(ground: Ground, job: wl.Job) -> list[tuple[str, int]]:
    """Every way to a port of the job: its pods' addresses, and its Services by address and by name."""
    api = ground.api
    addresses = [
        pod["status"]["podIP"] for pod in api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")
    ]
    lead = api.get(SERVICES, f"{job.id}-lead")["spec"]["clusterIP"]
    domain = f"{api.namespace}.svc"
    return [
        *((address, AGENT) for address in addresses[:1]),
        (lead, AGENT),
        (f"{job.id}-lead.{domain}", AGENT),
        (f"{job.id}-headless.{domain}", AGENT),
        *((address, STORE) for address in addresses),
    ]


def lead_address(ground: Ground, job: wl.Job) -> str:
    labels = f"{names.LABEL_JOB}={job.id},{names.LABEL_INDEX}=0"
    return str(ground.api.list(PODS, labels=labels)[0]["status"]["podIP"])


def test_strangers_reach_no_port(job: wl.Job, plain: Ground, strangers: Strangers) -> None:
    for stranger in (strangers.near, strangers.far):
        for host, port in find_places(plain, job):
            assert stranger.try_port(host, port) in ("TimeoutError", "ConnectionRefusedError")
    wait_for_steps(job, 2)
    _open_the_gate(job, plain, strangers)
    for stranger in (
        strangers.near,
        strangers.far,
    ):  # so it was the policy, and these ports are real
        for port in (AGENT, STORE):
            assert stranger.try_port(lead_address(plain, job), port) == "connected"


def test_without_the_policy_the_lead_lets_no_stranger_in(
    job: wl.Job, plain: Ground, strangers: Strangers
) -> None:
    _open_the_gate(job, plain, strangers)
    lead = lead_address(plain, job)
    ends = ("hung up", "ConnectionResetError", "BrokenPipeError", "tls:")
    assert strangers.near.try_port(lead, AGENT, "plain").startswith(ends)
    assert strangers.far.try_port(lead, AGENT, "tls").startswith(ends)
    (pod,) = plain.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id},{names.LABEL_INDEX}=0")

    def is_told() -> bool:
        log = plain.api.read_log(pod["metadata"]["name"]).decode()
        told = [line for line in log.splitlines() if "refused a link from" in line]
        return any("not TLS" in line for line in told) and any("no certificate" in t for t in told)

    wait_for(is_told, "both refusals are in the pod's log", 10.0)
    wait_for_steps(job, 3)
    assert job.status().attempt == 0


def _open_the_gate(job: wl.Job, ground: Ground, strangers: Strangers) -> None:
    """Take the job's policy away, and wait for the nodes to have heard of it."""
    assert ground.api.delete(NETWORK_POLICIES, job.id)
    lead = lead_address(ground, job)
    for stranger in (strangers.near, strangers.far):
        wait_for(lambda s=stranger: s.try_port(lead, AGENT) == "connected", "the gate is open")


def test_where_keys_are(plain: Ground) -> None:
    job = wl.submit("work.py::look", nodes=2)
    seen = job.results(timeout_s=60)
    data = plain.api.get(SECRETS, job.id)["data"]
    keys = {name: data[name] for name in data if name.endswith(".key")}
    assert {"client.key", "node.key"} <= set(keys)
    logs = [
        plain.api.read_log(pod["metadata"]["name"]).decode()
        for pod in plain.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")
    ]
    assert len(logs) == 2
    objects = str(plain.api.get(JOBS, job.id)) + str(
        plain.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")
    )
    texts = [*logs, objects, *(text for rank in seen for text in rank["texts"])]
    for name, encoded in keys.items():
        # the middle of a key, as it is and as a Secret has it: neither may show up anywhere
        line = base64.b64decode(encoded).decode().splitlines()[1]
        assert not any(line in text or encoded[40:80] in text for text in texts), name
    assert not any("PRIVATE KEY" in text for text in texts)
    for rank in seen:
        assert "node.key" in rank["files"]
        assert not {"client.key", "client.crt"} & set(rank["files"])
