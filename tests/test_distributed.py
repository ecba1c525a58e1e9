"""Functions for ranks: addresses of the nodes and paths of volumes."""

from __future__ import annotations

import socket

import pytest

import windlass as wl
from windlass.distributed import pod_ips, volume_path


@pytest.fixture
def ips():
    def ips():  # defined in a function, and therefore sent by value
        from windlass.distributed import pod_ips

        return pod_ips(), pod_ips(quorum_workers=2, quorum_timeout=30)

    return ips


def test_nodes_of_one_machine_have_local_addresses(ips):
    found = wl.run(ips, nodes=2, procs=2, quiet=True)
    assert found == [(["127.0.0.1"] * 2, ["127.0.0.1"] * 2)] * 4


@pytest.mark.cluster
def test_every_pod_has_its_own_address(space, monkeypatch, ips):
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    found = wl.run(ips, nodes=2, procs=1, quiet=True)
    addresses = found[0][0]
    assert len(set(addresses)) == 2
    assert all(socket.inet_aton(address) for address in addresses)
    assert found == [(addresses, addresses)] * 2


def test_outside_of_a_rank_it_raises():
    with pytest.raises(
        wl.SpecError, match="this process is not a rank\n  hint: call it in the function"
    ):
        pod_ips()


@pytest.mark.parametrize("wanted", [0, 3, -1])
def test_impossible_quorum_is_refused(monkeypatch, wanted):
    monkeypatch.setenv("WINDLASS_NODE_INDEXES", "2")
    with pytest.raises(
        wl.SpecError, match=f"must be between 1 and 2, the number of nodes, not {wanted}"
    ):
        pod_ips(quorum_workers=wanted)


@pytest.fixture
def pod(monkeypatch):
    """Set the environment of node 1 of 4, whose peers have no addresses."""
    monkeypatch.setattr(socket, "gethostname", lambda: "job.invalid-2")
    for name, value in {
        "WINDLASS_NODE_INDEXES": ",0,2,3",
        "WINDLASS_JOB_ID": "job.invalid",
        "WINDLASS_POD_IP": "10.0.0.7",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("pod")
def test_nodes_that_never_get_an_address_are_named():
    message = (
        r"1 of 3 nodes have an address after 0.1 s, but 3 are required; "
        r"missing: job.invalid-0, job.invalid-3"
    )
    with pytest.raises(TimeoutError, match=message):
        pod_ips(quorum_timeout=0.1)


@pytest.mark.usefixtures("pod")
def test_a_quorum_does_not_wait_for_the_others():
    assert pod_ips(quorum_workers=1, quorum_timeout=0.1) == ["10.0.0.7"]


def test_volumes_are_found_by_name(monkeypatch):
    monkeypatch.setenv("WINDLASS_VOLUME_SHARED_DATA", "/data")
    assert volume_path("shared-data") == "/data"
    with pytest.raises(
        wl.SpecError,
        match="volume 'other' not found on this node\n  hint: available volumes: shared_data",
    ):
        volume_path("other")
    monkeypatch.delenv("WINDLASS_VOLUME_SHARED_DATA")
    with pytest.raises(wl.SpecError, match="hint: pass volumes="):
        volume_path("shared-data")


def test_pods_without_names_raise_immediately(pod, monkeypatch):
    monkeypatch.setenv("WINDLASS_POD_HOSTS", "")
    with pytest.raises(wl.SpecError, match=r"pods of this job's engine have no host names"):
        pod_ips()
