"""An agent's first order: it comes whole, with what is open; one that is not an order is refused."""

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


def test_an_order_and_its_descriptor_come(ends, tmp_path):
    order = StartNode(node=1, plan="/j/plan", run_dir="/r", log="/l", hidden={"TOKEN": "x" * 9000})
    with (tmp_path / "lock").open("w") as lock:
        send_order(ends[0], order, [lock.fileno()])
        told, (fd,) = receive_order(ends[1])
        try:
            assert told == order
            assert os.path.samestat(os.fstat(fd), os.fstat(lock.fileno()))
            assert not os.get_inheritable(fd)
        finally:
            os.close(fd)


def test_a_client_that_goes_away_gives_no_order(ends):
    ends[0].close()
    assert receive_order(ends[1]) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [(b'{"node":0,"plan":"p","run_dir":"r","log":"l"}\n', "no hidden"), (b'{"node":-1}\n', "node")],
)
def test_what_is_not_an_order_is_refused(ends, said, why):
    ends[0].sendall(said)
    with pytest.raises(ProtocolError, match=why):
        receive_order(ends[1])
