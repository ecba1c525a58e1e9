"""A client that connects to a lead on this machine: one that answers slowly, and one that hangs up."""

from __future__ import annotations

import socket

import pytest

from windlass import names
from windlass.client.jobs.job_ids import make_letters
from windlass.engines.local import lead_socket
from windlass.engines.local.lead_socket import (
    make_socket_folder,
    reach_lead,
    record_socket_folder,
    remove_socket_folder,
)
from windlass.wire.frames import FrameDecoder
from windlass.wire.job_folder import JobFolder


@pytest.fixture
def lead(tmp_path, monkeypatch):
    """Yield the folder of a job and the socket of its lead, which sends nothing by itself."""
    monkeypatch.setattr(lead_socket, "_CONNECT_TIMEOUT_S", 0.2)
    folder = JobFolder(tmp_path / f"job-{make_letters(10)}")
    folder.path.mkdir()
    place = make_socket_folder(folder.path.name)
    record_socket_folder(folder, place)
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(str(place / names.LEAD_SOCKET))
        here.listen()
        here.settimeout(20)
        yield folder, here
    remove_socket_folder(folder)


def read_hello(here):
    connection, _ = here.accept()
    [hello] = FrameDecoder().feed(connection.recv(65536))
    return connection, hello.header


def test_lease_is_held_while_the_lead_is_slow(lead):
    folder, here = lead
    link = reach_lead(folder, lease=True, is_needed=lambda: True)
    connection, hello = read_hello(here)
    assert hello["lease"] is True
    connection.setblocking(False)
    with pytest.raises(BlockingIOError):  # the lease is held, because the client has not hung up
        connection.recv(1)
    link.close()
    connection.close()


def test_no_order_is_sent_to_a_lead_that_does_not_answer(lead):
    folder, here = lead
    assert reach_lead(folder, lease=False, is_needed=lambda: True) is None
    connection, _ = read_hello(here)
    assert connection.recv(1) == b""
    connection.close()


@pytest.mark.parametrize("lease", [True, False])
def test_ended_lead_is_not_reached(lead, lease):
    folder, here = lead
    here.close()
    assert reach_lead(folder, lease=lease, is_needed=lambda: False) is None
