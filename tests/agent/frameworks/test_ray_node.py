"""Ray's nodes: the flags of `ray start`, and the checks before Ray starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from windlass.frameworks.ray_flags import make_flags, read_version
from windlass.frameworks.ray_node import find_fault, make_note, read_address
from windlass.spec.node_resources import NodeSize
from windlass.wire.messages.forkserver import ClusterNode

FOLDER = Path("/tmp/x")
HEAD = ClusterNode(size=NodeSize(), num_nodes=2, secret="s3cret", own_address="10.0.0.1")
WORKER = HEAD.replaced(joins=True, index=1, own_address="10.0.0.2")
HERE = HEAD.replaced(own_address="")


def test_pods_use_the_documented_ports_of_ray():
    head = make_flags("", 0, HEAD, FOLDER)
    assert {"--head", "--port=6379", "--dashboard-port=8265"} <= set(head)
    assert "--min-worker-port=10002" in head
    worker = make_flags("10.0.0.1", 6379, WORKER, FOLDER)
    assert "--address=10.0.0.1:6379" in worker
    assert not any(flag.startswith(("--head", "--port", "--ray-client")) for flag in worker)
    for flags in (head, worker):
        assert not any(flag.startswith(("--num-cpus", "--memory")) for flag in flags)


def test_local_nodes_have_their_own_address_and_share():
    head, other = (make_flags("", 0, HERE, FOLDER) for _ in range(2))
    assert {"--node-ip-address=127.0.0.2", "--port=0"} <= set(head)
    assert head != other  # the port of Ray's client differs each time
    worker = make_flags("127.0.0.2", 40000, HERE.replaced(joins=True, index=1), FOLDER)
    assert {"--node-ip-address=127.0.0.3", "--address=127.0.0.2:40000"} <= set(worker)
    assert {"--num-cpus", "--memory", "--object-store-memory"} <= {f.split("=")[0] for f in worker}


def test_requested_sizes_are_passed_to_ray():
    size = NodeSize(cpus=1.5, gpus=3, memory_bytes=1 << 31)
    for node in (HEAD, HERE):
        flags = make_flags("", 0, node.replaced(size=size), FOLDER)
        assert {"--num-cpus=2", "--num-gpus=3", f"--memory={1 << 31}"} <= set(flags)


def test_the_secret_is_never_in_the_command():
    for node in (HEAD, WORKER, HERE):
        assert not any("s3cret" in flag for flag in make_flags("a", 1, node, FOLDER))


@pytest.mark.parametrize(
    ("version", "node", "fault"),
    [
        ("2.60.0", HERE, ""),
        ("2.60.0", HERE.replaced(version="2.32.0"), ""),
        ("", HERE, "Ray is not installed on node 0"),
        (
            "2.60.0",
            HERE.replaced(version="3.1.0"),
            "the client has Ray 3.1.0, but node 0 has 2.60",
        ),
        ("2.60.0", HERE.replaced(size=NodeSize(gpus=999)), "node 0 needs 999 GPUs"),
        ("2.60.0", HERE.replaced(size=NodeSize(gpus=999), pretends_gpus=True), ""),
        ("2.60.0", HEAD.replaced(size=NodeSize(gpus=999)), ""),
    ],
)
def test_faults_have_a_hint(version, node, fault):
    found = find_fault(version, node)
    assert found.startswith(fault)
    assert bool(found) == bool(fault) == (" -> " in found)


def test_notes_for_the_user():
    assert make_note("2.60.0", HEAD) == ""
    assert "accepts clients without a token" in make_note("2.32.0", HEAD)
    assert make_note("2.32.0", WORKER) == ""
    skewed = HEAD.replaced(version="2.60.1")
    assert make_note("2.56.0", skewed) == "the client has Ray 2.60.1, the nodes have 2.56.0"
    assert make_note("2.60.0", skewed) == ""
    pretending = HERE.replaced(size=NodeSize(gpus=2), pretends_gpus=True)
    assert make_note("2.60.0", pretending) == "node 0 pretends to have 2 GPUs"


def test_versions():
    assert read_version("2.52.1") == (2, 52)
    assert read_version("3.0.0.dev0") == (3, 0)


def test_node_is_up_when_its_address_is_written(tmp_path):
    file = tmp_path / "ray_current_cluster"
    for text, address in [(None, ("", 0)), ("", ("", 0)), ("10.0.0.7:6379", ("10.0.0.7", 6379))]:
        if text is not None:
            file.write_text(text)
        assert read_address(tmp_path) == address


@pytest.mark.parametrize("has_client", [True, False])
@pytest.mark.parametrize(("node", "port"), [(HEAD, "10001"), (HERE, "")])
def test_ray_client_has_a_port_only_if_ray_can_serve_it(
    tmp_path, monkeypatch, node, port, has_client
):
    """`pip install ray` comes without grpc, and such a Ray refuses to start with that port."""
    (tmp_path / "grpc").mkdir()
    (tmp_path / "grpc" / "__init__.py").touch()
    others = [path for path in sys.path if not (Path(path) / "grpc").exists()]
    monkeypatch.setattr(sys, "path", [*([str(tmp_path)] if has_client else []), *others])
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    flags = [f for f in make_flags("", 0, node, FOLDER) if f.startswith("--ray-client-server-port")]
    assert len(flags) == has_client
    assert all(flag.endswith(port) for flag in flags)
