"""Probe that runs in two pods and tests names, ports, clocks, bandwidth and versions. Prints one JSON line.

Runs in the image under test as `python3 -c` with this source, so it uses only the standard library, and torch
if the image has it. Every wait has a deadline. doctor_deep.py starts it and reads the line from the log.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import platform
import socket
import struct
import sys
import threading
import time
from typing import Any

CLOCK_PORT = 29400  # the client connects to it through port-forward
PORT = 29500
STORE_PORT = 29501
CLOSED_PORT = 29399  # no rule allows connections here
DEADLINE_S = 90.0
CLIENT_S = 20.0
FIRST_LOOKUP_S = 3.0  # a name looked up too early stays cached as missing for up to 30 s
NUM_PINGS = 20
NUM_TRIES = 3
NUM_BYTES = 16 << 20
NUM_ROUNDS = 5
MARK = "windlass-probe "


def retry(act: Any, deadline_s: float) -> Any:
    """Call `act` until it succeeds or the deadline passes, and return its result."""
    while True:
        try:
            return act()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def look_up(name: str, deadline_s: float) -> tuple[str, float, float]:
    """Return a name's address, the seconds until it was known, and the duration of one lookup."""
    started_s = deadline_s - DEADLINE_S
    retry(lambda: socket.getaddrinfo(name, PORT, type=socket.SOCK_STREAM), deadline_s)
    known_s = time.monotonic()
    address = socket.getaddrinfo(name, PORT, type=socket.SOCK_STREAM)[0][4][0]
    return str(address), known_s - started_s, time.monotonic() - known_s


def listen(port: int) -> socket.socket:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)


def serve_clock(server: socket.socket, asked: threading.Event) -> None:
    """Answer each byte with the local time. Set `asked` once a client was served and has disconnected."""
    while True:
        peer, _ = server.accept()
        num_asked = 0
        with contextlib.suppress(OSError), peer:  # a peer that disconnects must not stop the next
            peer.settimeout(CLIENT_S)
            while peer.recv(1):
                peer.sendall(struct.pack("!d", time.time()))
                num_asked += 1
        if num_asked:
            asked.set()


def ask_clock(address: str, deadline_s: float) -> tuple[float, float]:
    """Return how far the peer's clock is ahead and the round-trip time, from the fastest of several pings."""
    peer = retry(lambda: socket.create_connection((address, PORT), timeout=5), deadline_s)
    with peer:
        best = (float("inf"), 0.0)
        for _ in range(NUM_PINGS):
            sent_s = time.time()
            peer.sendall(b"?")
            there_s = struct.unpack("!d", peer.recv(8, socket.MSG_WAITALL))[0]
            trip_s = time.time() - sent_s
            best = min(best, (trip_s, there_s - sent_s - trip_s / 2))
    return best[1], best[0]


def is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def is_enforced(address: str) -> bool | None:
    """Return whether a port that no rule opens is closed in time, or None if the peer has exited."""
    for _ in range(NUM_TRIES):
        is_closed = not is_open(address, CLOSED_PORT)
        if not is_open(address, PORT):
            return None
        if is_closed:
            return True
        time.sleep(1.0)
    return False


def reduce_all(rank: int, address: str) -> dict[str, Any]:
    """Return the bytes per second of an all-reduce between the two pods with gloo."""
    started_s = time.monotonic()
    try:
        torch = importlib.import_module("torch")  # the image's torch, not the client's
        dist = importlib.import_module("torch.distributed")
    except ImportError as error:
        return {"torch": "", "torch_error": str(error)}
    finding: dict[str, Any] = {
        "torch": torch.__version__,
        "import_s": time.monotonic() - started_s,
        "gpus": torch.cuda.device_count(),
    }
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{f'[{address}]' if ':' in address else address}:{STORE_PORT}",
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=60),
        )
        data = torch.ones(NUM_BYTES // 4)
        dist.all_reduce(data)
        dist.barrier()
        started_s = time.monotonic()
        for _ in range(NUM_ROUNDS):
            dist.all_reduce(data)
        finding["bytes_per_s"] = NUM_BYTES * NUM_ROUNDS / (time.monotonic() - started_s)
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - any error is a finding
        finding["reduce_error"] = f"{type(error).__name__}: {error}"
    return finding


def probe(rank: int, names: list[str]) -> dict[str, Any]:
    deadline_s = time.monotonic() + DEADLINE_S
    served = {port: threading.Event() for port in (CLOCK_PORT, PORT, CLOSED_PORT)}
    for port, event in served.items():
        threading.Thread(target=serve_clock, args=(listen(port), event), daemon=True).start()
    finding: dict[str, Any] = {
        "rank": rank,
        "python": platform.python_version(),
        "uid": os.getuid(),
    }
    time.sleep(FIRST_LOOKUP_S)
    try:
        addresses = [look_up(name, deadline_s) for name in names]
        finding["dns_wait_s"], finding["dns_s"] = addresses[1 - rank][1:]
        peer = addresses[1 - rank][0]
        retry(lambda: socket.create_connection((peer, PORT), timeout=5), deadline_s).close()
        finding["is_enforced"] = is_enforced(peer)
        finding["skew_s"], finding["trip_s"] = ask_clock(peer, deadline_s)
        finding.update(reduce_all(rank, addresses[0][0]))
    except OSError as error:
        finding["error"] = f"{type(error).__name__}: {error}"
    # The peer may be slower, and the client contacts only the first pod. Stay until both were answered.
    served[PORT].wait(max(0.0, deadline_s - time.monotonic()))
    if rank == 0:
        served[CLOCK_PORT].wait(max(0.0, min(CLIENT_S, deadline_s - time.monotonic())))
    return finding


if __name__ == "__main__":
    finding = probe(int(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(f"{MARK}{json.dumps(finding)}\n")
