"""Monarch's worker: its address, the checks before it starts, and the arguments of a function."""

from __future__ import annotations

import sys
import types

import pytest

from windlass.errors import SpecError
from windlass.frameworks.framework import load_framework
from windlass.frameworks.monarch_client import FaultHook, attach_own
from windlass.frameworks.monarch_worker import find_fault, make_address, make_note
from windlass.spec.node_resources import NodeSize
from windlass.wire.messages.forkserver import ClusterNode


def make_node(**fields):
    return ClusterNode(size=NodeSize(), num_nodes=2, secret="s", **fields)


def test_missing_monarch_is_an_error_with_a_hint():
    fault = find_fault("", make_node(index=1))
    assert "Monarch is not installed on node 1" in fault
    assert "pip install torchmonarch" in fault
    assert find_fault("0.7.0", make_node()) == ""


@pytest.mark.parametrize(
    ("client", "index", "is_noted"),
    [("", 0, False), ("0.7.0", 0, False), ("0.6.0", 0, True), ("0.6.0", 1, False)],
)
def test_client_with_another_version_is_noted_once(client, index, is_noted):
    note = make_note("0.7.0", make_node(version=client, index=index))
    assert ("the client has Monarch 0.6.0, the nodes have 0.7.0" in note) is is_noted


def test_address_of_a_worker():
    assert make_address(make_node(own_address="10.0.0.7")) == "tcp://10.0.0.7:26600"
    assert make_address(make_node(own_address="fd00::7")) == "tcp://[fd00::7]:26600"
    assert make_address(make_node(folder="/run/w", index=1)).startswith("ipc:///run/w/m1-")


def first(mesh, lr, *more):
    return mesh, lr, more


def last(lr, *, mesh=None):
    return lr, mesh


def none(lr):
    return lr


@pytest.fixture
def mesh(monkeypatch):
    given = types.ModuleType("windlass.monarch")
    given.host_mesh = lambda: "the mesh"
    monkeypatch.setitem(sys.modules, "windlass.monarch", given)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "result"),
    [
        (first, (1,), {}, ("the mesh", 1, ())),
        (first, (1, 2, 3), {}, ("the mesh", 1, (2, 3))),
        (first, (), {"lr": 1}, ("the mesh", 1, ())),
        (first, (1,), {"mesh": "mine"}, None),
        (last, (1,), {}, (1, "the mesh")),
        (last, (1,), {"mesh": "mine"}, (1, "mine")),
        (none, (1,), {}, 1),
    ],
)
def test_mesh_parameter_is_filled_in(mesh, function, args, kwargs, result):
    args, kwargs = load_framework("monarch").fill(function, args, kwargs)
    if result is None:  # Python's own error for an argument given twice
        with pytest.raises(TypeError, match="multiple values"):
            function(*args, **kwargs)
    else:
        assert function(*args, **kwargs) == result


def test_interrupt_after_a_fault_is_reported_as_the_fault(monkeypatch):
    explain = load_framework("monarch").explain
    interrupt, own = KeyboardInterrupt(), ValueError("mine")
    assert explain(interrupt) is interrupt
    actor, hook = types.ModuleType("monarch.actor"), FaultHook()
    hook.failure = "the actor greeters failed"
    actor.unhandled_fault_hook = hook
    monkeypatch.setitem(sys.modules, "monarch.actor", actor)
    assert explain(own) is own
    assert str(explain(interrupt)).endswith(
        "no __supervise__ handled it: the actor greeters failed"
    )


def test_no_mesh_outside_monarch_work(monkeypatch):
    monkeypatch.delenv("WINDLASS_MONARCH_WORKERS", raising=False)
    with pytest.raises(SpecError, match="no Monarch mesh is available here"):
        attach_own()
