"""`windlass port-forward`: forward a local port to node 0 of a compute, on both engines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
from port_tasks import answer
from waits import wait_for

import windlass as kt

WINDLASS = [sys.executable, "-m", "windlass.cli.main"]


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run(*words):
    return subprocess.run([*WINDLASS, *words], capture_output=True, text=True, timeout=60)


def exchange(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"hello")
        return connection.recv(100)


@contextlib.contextmanager
def forwarding(on, *words):
    """Run the command while the block runs, and yield what it printed.

    Locally there is nothing to forward, so the command only prints the address and exits.
    """
    with subprocess.Popen(
        [*WINDLASS, "port-forward", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        if on.space is not None:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == (0 if on.space is None else 130)


def test_port_of_node_0_is_reached_by_the_compute_name(on, make):
    compute, port = make(), find_free_port()
    call = kt.fn(answer).to(compute).submit(port, 4)
    job = on.job(compute)

    def is_open():
        try:
            with contextlib.closing(job.open_port(port)) as connection:
                connection.settimeout(30)
                connection.sendall(b"x")
                return connection.recv(1) == b"X"
        except OSError:
            return False

    wait_for(is_open, "the port is open", 60.0)
    local = find_free_port()
    with forwarding(on, compute.name, f"{local}:{port}") as address:
        assert address == f"127.0.0.1:{port if on.engine == 'local' else local}"
        assert exchange(address) == b"HELLO"
        assert exchange(address) == b"HELLO"
    assert call.result(timeout_s=60) == port


def test_port_forward_waits_for_a_listener(on, make):
    compute, port = make(), find_free_port()
    local = find_free_port()
    with subprocess.Popen(
        [*WINDLASS, "port-forward", compute.up().name, f"{local}:{port}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        call = kt.fn(answer).to(compute).submit(port, 3)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address == f"127.0.0.1:{port if on.engine == 'local' else local}"
        assert exchange(address) == b"HELLO"
        process.send_signal(signal.SIGINT)
        process.wait(30)
    call.cancel()


@pytest.mark.long
def test_ports_that_cannot_be_forwarded(on, make):
    compute = make().up()
    with socket.socket() as held:  # bound but not listening, so that no other process gets the port
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        silent = run("port-forward", compute.name, str(port))
    assert silent.returncode == 3
    assert f"nothing listens at port {port} of node 0 of {on.job(compute).id}" in silent.stderr
    wrong = run("port-forward", compute.name, "80:http")
    assert (wrong.returncode, "invalid port '80:http'" in wrong.stderr) == (2, True)
    unknown = run("port-forward", "unknown-has-this", "80")
    assert unknown.returncode == 2
    assert "unknown-has-this" in unknown.stderr


def test_an_ended_job_has_no_ports(on, make):
    compute = make().up()
    job = on.job(compute)
    compute.teardown()
    with pytest.raises(ConnectionRefusedError, match=f"node 0 of {job.id} is not running"):
        job.open_port(80)
