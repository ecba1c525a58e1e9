"""Foreign pods cannot connect to a job's ports. Without the network policy, its lead refuses them.

Keys are only in the Secret and in files where they are needed. They are in no variable, argument or log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from strict_cluster.conftest import TEST_IMAGE
from strict_cluster.ground import WAIT_S, Ground, Object, open_ground, wait_for
from strict_cluster.stranger import Stranger, open_stranger

import windlass as wl
from windlass import names
from windlass.engines.dialects.kubernetes import LABEL_INDEX
from windlass.kube.objects.kinds import JOBS, NETWORK_POLICIES, PODS, SECRETS, SERVICES

pytestmark = pytest.mark.cluster

AGENT, STORE = 29400, 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """A foreign pod in the job's own namespace, and one in another namespace."""

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
    """Submit two nodes that all-reduce until they are stopped."""
    job = wl.submit("training.py::reduce_on", nodes=2)
    wait_for_steps(job, 3)
    printed = {line.text for line in job.logs() if line.stream == "stdout"}
    assert printed == {f"store at {STORE}"}
    return job


def wait_for_steps(job: wl.Job, num_more: int) -> None:
    """Wait until the training has made that many more steps."""
    before = job.status().progress.step or 0

    def has_advanced() -> bool:
        return (job.status().progress.step or 0) >= before + num_more

    wait_for(has_advanced, f"{num_more} more steps after step {before}")


def find_open_ports(ground: Ground, job: wl.Job) -> list[tuple[str, int]]:
    """Return every address on which the job listens: of the pod, its Service, and the Service's name."""
    lead = _find_lead(ground, job)["status"]["podIP"]
    service = f"{job.id}-lead"
    address = ground.api.get(SERVICES, service)["spec"]["clusterIP"]
    name = f"{service}.{ground.api.namespace}.svc"
    return [(lead, AGENT), (lead, STORE), (address, AGENT), (name, AGENT)]


def find_other_ports(ground: Ground, job: wl.Job) -> list[tuple[str, int]]:
    """Return addresses of the job's other ports, where no process may be listening."""
    pods = ground.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id},{LABEL_INDEX}=1")
    hosts = (pods[0]["status"]["podIP"], f"{job.id}-headless.{ground.api.namespace}.svc")
    return [(host, port) for host in hosts for port in (AGENT, STORE)]


def _find_lead(ground: Ground, job: wl.Job) -> Object:
    labels = f"{names.LABEL_JOB}={job.id},{LABEL_INDEX}=0"
    (lead,) = ground.api.list(PODS, labels=labels)
    return lead


def test_foreign_pods_cannot_connect(job: wl.Job, plain: Ground, strangers: Strangers) -> None:
    both = (strangers.near, strangers.far)
    open_ports = find_open_ports(plain, job)
    for stranger in both:
        for host, port in open_ports + find_other_ports(plain, job):
            assert stranger.try_port(host, port) in ("TimeoutError", "ConnectionRefusedError")
    wait_for_steps(job, 2)
    assert plain.api.delete(NETWORK_POLICIES, job.id)
    for stranger in both:  # proves that the policy kept them out, because these ports are open
        for host, port in open_ports:
            wait_for(
                lambda s=stranger, h=host, p=port: s.try_port(h, p) == "connected",
                f"{host}:{port} is open without the policy",
            )
    _check_the_lead_refuses_strangers(job, plain, strangers)
    wait_for_steps(job, 3)
    assert (job.status().attempt, job.status().history) == (0, ())


def _check_the_lead_refuses_strangers(job: wl.Job, ground: Ground, strangers: Strangers) -> None:
    """Check that plain text and TLS without a certificate are refused and logged."""
    lead = _find_lead(ground, job)
    address, name = lead["status"]["podIP"], lead["metadata"]["name"]
    ends = ("hung up", "ConnectionResetError", "BrokenPipeError", "tls:")
    assert strangers.near.try_port(address, AGENT, "plain").startswith(ends)
    assert strangers.far.try_port(address, AGENT, "tls").startswith(ends)

    def is_logged() -> bool:
        refusals = [
            line
            for line in ground.api.read_log(name).decode().splitlines()
            if "refused a link from" in line
        ]
        return all(any(why in line for line in refusals) for why in ("not TLS", "no certificate"))

    wait_for(is_logged, "both refusals are in the pod's log", 10.0)


def test_where_keys_are(plain: Ground) -> None:
    job = wl.submit("work.py::look", nodes=2)
    seen = job.results(timeout_s=WAIT_S)
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
        # the middle of a key, in plain text and in base64, must not appear anywhere
        line = base64.b64decode(encoded).decode().splitlines()[1]
        assert not any(line in text or encoded[40:80] in text for text in texts), name
    assert not any("PRIVATE KEY" in text for text in texts)
    for rank in seen:
        assert "node.key" in rank["files"]
        assert not {"client.key", "client.crt"} & set(rank["files"])
