"""First order of an agent: it arrives complete with its open descriptors, and anything else is refused."""

from __future__ import annotations

import os
import socket

import pytest

from windlass.errors import ProtocolError
from windlass.wire.messages.agents import StartNode
from windlass.wire.start_order import receive_order, send_order


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_order_and_descriptor_arrive(ends, tmp_path):
    order = StartNode(node=1, plan="/j/plan", run_dir="/r", log="/l", hidden={"TOKEN": "x" * 9000})
    with (tmp_path / "lock").open("w") as lock:
        send_order(ends[0], order, [lock.fileno()])
        received, (fd,) = receive_order(ends[1])
        try:
            assert received == order
            assert os.path.samestat(os.fstat(fd), os.fstat(lock.fileno()))
            assert not os.get_inheritable(fd)
        finally:
            os.close(fd)


def test_disconnected_client_gives_no_order(ends):
    ends[0].close()
    assert receive_order(ends[1]) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [(b'{"node":0,"plan":"p","run_dir":"r","log":"l"}\n', "no hidden"), (b'{"node":-1}\n', "node")],
)
def test_invalid_order_is_refused(ends, data, why):
    ends[0].sendall(data)
    with pytest.raises(ProtocolError, match=why):
        receive_order(ends[1])
