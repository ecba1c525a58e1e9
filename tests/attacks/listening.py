"""Ranks that look up, in the kernel's tables, where their job's processes listen. Linux only."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

_LISTEN = "0A"


def meet_and_look():
    """Join the process group, and return where the job listens and which other addresses respond."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    port, found = int(os.environ["MASTER_PORT"]), find_listening(os.environ["WINDLASS_JOB_ID"])
    answers = []
    for address in ("127.0.0.2", find_own_address()):
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
            answers.append(address)
    dist.barrier()
    dist.destroy_process_group()
    return {"total": int(total), "port": port, "listening": found, "answers": answers}


def meet_and_read_store():
    """Join the process group, and return what other users could see of the store.

    `num_new` counts the keys added to the store at the master's port. `mode` is the mode of the folder with
    the ranks' own store.
    """
    import torch
    import torch.distributed as dist

    client = None
    if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True":
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        client = dist.TCPStore(address, port, is_master=False)
    before = client.num_keys() if client else 0
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    after = client.num_keys() if client else 0
    dist.barrier()
    dist.destroy_process_group()
    folder = Path(os.environ["WINDLASS_STORE"]).parent
    return {
        "total": int(total),
        "num_new": after - before,
        "mode": folder.stat().st_mode & 0o777,
        "has_client": client is not None,
    }


def find_own_address():
    """Return an address by which other machines could reach this one, or 127.0.0.3."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # connecting a UDP socket sends nothing
            return asking.getsockname()[0]
        except OSError:
            return "127.0.0.3"


def fail_once_then_meet():
    """Fail in attempt 0, then join the process group."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("the first time")
    return meet_and_look()


def find_listening(job_id: str) -> list[tuple[str, int]]:
    """Return the addresses and ports where the job's processes and their parents listen."""
    inodes = _read_sockets()
    found = set()
    for pid in _find_processes(job_id):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(inodes.get(os.readlink(link)))
    return sorted(found - {None})


def _find_processes(job_id: str) -> set[int]:
    """Return the job's processes.

    An environment variable identifies ranks. Agents, fork servers and stores are their parents or siblings.
    """
    parents = {}
    ranks = set()
    needle = f"WINDLASS_JOB_ID={job_id}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
                if needle in (entry / "environ").read_bytes():
                    ranks.add(int(entry.name))
    ranks.add(os.getpid())
    servers = {parents.get(pid) for pid in ranks}
    beside = {pid for pid, parent in parents.items() if parent in servers}
    return ranks | beside | {pid for pid in servers if pid}


def _read_sockets() -> dict[str, tuple[str, int]]:
    """Return the address of each listening socket, by its name in /proc/PID/fd."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    found[f"socket:[{words[9]}]"] = _read_address(words[1])
    return found


def _read_address(text: str) -> tuple[str, int]:
    packed, _, port = text.partition(":")
    words = [int(packed[at : at + 8], 16) for at in range(0, len(packed), 8)]
    raw = b"".join(struct.pack("<I", word) for word in words)
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw).removeprefix("::ffff:"), int(port, 16)
