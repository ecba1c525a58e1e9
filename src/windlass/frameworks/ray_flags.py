"""The flags of `ray start` for one node: its address, its ports and its resources.

In pods the ports are the ones that Ray documents, with a fixed range for Ray's workers. On one machine
several clusters may run side by side, so all ports are free ones and each node has its own loopback address.
"""

from __future__ import annotations

import importlib.util
import math
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.wire.messages.forkserver import ClusterNode

FIRST_WITH_TOKENS = (2, 52)
POD_PORT = 6379  # the head's port
AGENT_PORT = 6382  # open on each node
DASHBOARD_PORT = 8265
_DASHBOARD_NEEDS = (
    "aiohttp",
    "aiohttp_cors",
    "grpc",
    "prometheus_client",
)  # packages of ray[default]
_SHM = "/dev/shm"  # noqa: S108 - Ray's object store
_LEAST_STORE_BYTES = 80 << 20
_POD_PORTS = (
    *(
        "--node-manager-port=6380",
        "--object-manager-port=6381",
        f"--runtime-env-agent-port={AGENT_PORT}",
    ),
    *("--dashboard-agent-grpc-port=6383", "--dashboard-agent-listen-port=52365"),
    *("--metrics-export-port=8080", "--min-worker-port=10002", "--max-worker-port=10999"),
)
_POD_HEAD = (
    *(f"--port={POD_PORT}", "--dashboard-host=0.0.0.0", f"--dashboard-port={DASHBOARD_PORT}"),
)
_CLIENT_PORT = 10001
_CLIENT_NEEDS = "grpc"  # package of ray[client]; without it, `ray start` rejects the port flag
_ANY_PORTS = (*("--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"),)


def make_auth(secret: str) -> dict[str, str]:
    """Return the variables that make Ray require a token and supply it. Ray before 2.52 ignores them."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret}


def read_version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def choose_dashboard_port(node: ClusterNode) -> int:
    """Return a free dashboard port for a head on this machine, or 0 if none is needed.

    Only a head outside pods needs one, and only if Ray's dashboard is installed. Heads in pods use the
    standard port.
    """
    if node.joins or node.own_address:
        return 0
    has_page = all(importlib.util.find_spec(name) for name in _DASHBOARD_NEEDS)
    return _find_port() if has_page else 0


def make_flags(
    address: str, port: int, node: ClusterNode, folder: Path, *, dashboard_port: int = 0
) -> list[str]:
    """Return the flags for `ray start`. The secret is passed in the environment instead."""
    is_pod = bool(node.own_address)
    own = node.own_address or f"127.0.{node.index // 250}.{2 + node.index % 250}"
    flags = [f"--node-ip-address={own}", f"--temp-dir={folder}", "--disable-usage-stats"]
    if node.joins:
        flags += [f"--address={address}:{port}"]
    else:
        flags += ["--head", *(_POD_HEAD if is_pod else _make_head_ports(dashboard_port))]
        if importlib.util.find_spec(_CLIENT_NEEDS):
            flags.append(f"--ray-client-server-port={_CLIENT_PORT if is_pod else _find_port()}")
    return [*flags, *(_POD_PORTS if is_pod else _ANY_PORTS), *_make_sizes(node, is_pod=is_pod)]


def _make_head_ports(dashboard_port: int) -> list[str]:
    page = ["--include-dashboard=false"]
    if dashboard_port:
        page = ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]
    return ["--port=0", *page]


def _find_port() -> int:
    """Return a port that is free now. Ray cannot take over an open socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _make_sizes(node: ClusterNode, *, is_pod: bool) -> list[str]:
    """Return the resource flags: the requested sizes, or defaults where none were requested.

    Without a request, Ray detects a pod's resources, and a node on one machine gets its share of them.
    """
    size = node.size
    cpus, memory = math.ceil(size.cpus), size.memory_bytes
    flags = [f"--num-gpus={size.gpus}"]
    if not is_pod:
        cpus = cpus or max(1, (os.cpu_count() or 1) // node.num_nodes)
        share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // node.num_nodes
        memory = memory or share * 7 // 10
        objects = max(_LEAST_STORE_BYTES, min(share * 2 // 10, _read_free(_SHM) // node.num_nodes))
        flags.append(f"--object-store-memory={objects}")
    if cpus:
        flags.append(f"--num-cpus={cpus}")
    if memory:
        flags.append(f"--memory={memory}")
    return flags


def _read_free(path: str) -> int:
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize * 8 // 10
