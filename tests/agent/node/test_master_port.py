"""Master port: while it is held, no process gets it by chance, and rank 0 gets it by its number."""

from __future__ import annotations

import socket
import threading

import pytest

from windlass.agent.lead.stores import reserve_port


@pytest.fixture
def held():
    port = reserve_port()
    yield port
    port.release()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("reuse", [0, 1])
def test_held_port_is_not_given_by_chance(held, address, reuse):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    taken = []
    try:
        for _ in range(300):
            other = socket.socket(family)
            taken.append(other)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                other.bind((address, 0))
            except OSError:
                pytest.skip(f"no {address} here")
            assert other.getsockname()[1] != held.number
    finally:
        for other in taken:
            other.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_held_port_can_be_bound_by_number(held, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            store.bind((address, held.number))
        except OSError as error:
            if error.errno == 97:
                pytest.skip(f"no {address} here")
            raise
        store.listen()
        with socket.create_connection(("127.0.0.1", held.number), timeout=10):
            store.settimeout(10)
            store.accept()[0].close()


def test_torch_store_can_bind_the_held_port(held):
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", held.number, world_size=1, is_master=True)
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_concurrent_ports_are_all_different():
    ports: list = []
    threads = [
        threading.Thread(target=lambda: ports.extend(reserve_port() for _ in range(25)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({port.number for port in ports}) == 100
    finally:
        for port in ports:
            port.release()


def test_a_preferred_port_is_taken_when_it_is_free(held):
    number = held.number
    held.release()
    again = reserve_port(number)
    try:
        assert again.number == number
    finally:
        again.release()


def test_a_preferred_port_in_use_gives_another():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        port = reserve_port(number)
        try:
            assert port.number not in (0, number)
        finally:
            port.release()


def test_releasing_twice_is_harmless(held):
    held.release()
    held.release()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", held.number))
        assert other.getsockname()[1] == held.number
