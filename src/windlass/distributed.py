"""Functions that user code calls inside a rank: node addresses and volume folders.

On some nodes only the agent's archive is available. This module therefore imports only the standard
library and a few small Windlass modules.
"""

from __future__ import annotations

import os
import socket

from windlass import names
from windlass.errors import SpecError
from windlass.plan.plan import read_indexes
from windlass.waiting import wait_until

_LOOPBACK = "127.0.0.1"
_EVERY_S = 0.25
_SHOWN = 8


def pod_ips(quorum_workers: int | None = None, quorum_timeout: float = 60.0) -> list[str]:
    """Return the addresses of this job's nodes in node order, node 0 first.

    Waits until `quorum_workers` nodes have an address, and raises TimeoutError if that takes too long.
    Nodes that have no address by then are left out.

    quorum_workers: number of nodes to wait for (default: all of them).
    quorum_timeout: number of seconds to wait.
    """
    indexes = _read_nodes()
    wanted = len(indexes) if quorum_workers is None else quorum_workers
    if not 1 <= wanted <= len(indexes):
        raise SpecError(
            f"quorum_workers must be between 1 and {len(indexes)}, the number of nodes, not {wanted}",
            hint="omit it to wait for all nodes",
        )
    if names.POD_IP not in os.environ:  # not in a pod, so all nodes run on this machine
        return [_LOOPBACK] * len(indexes)
    return _resolve(indexes, wanted, quorum_timeout)


def volume_path(name: str) -> str:
    """Return the folder of a volume on this rank.

    name: the volume's name.
    """
    path = os.environ.get(volume_variable(name))
    if path:
        return path
    start = len(names.VOLUME)
    there = sorted(key[start:].lower() for key in os.environ if key.startswith(names.VOLUME))
    raise SpecError(
        f"volume {name!r} not found on this node",
        hint=f"available volumes: {', '.join(there)}"
        if there
        else "pass volumes=[Volume(...)] to the compute",
    )


def volume_variable(name: str) -> str:
    """Return the name of the environment variable that holds a volume's folder."""
    return names.VOLUME + name.upper().replace("-", "_")


def _read_nodes() -> list[int]:
    try:
        return read_indexes(os.environ[names.NODE_INDEXES])
    except (KeyError, ValueError):
        raise SpecError(
            "pod_ips() works only inside a rank of a job, and this process is not a rank",
            hint="call it in the function or script that Windlass runs",
        ) from None


def _resolve(indexes: list[int], wanted: int, timeout_s: float) -> list[str]:
    job_id = os.environ[names.JOB_ID]
    pattern = os.environ.get(names.POD_HOSTS, names.POD_HOST)
    if not pattern:
        raise SpecError(
            "pod_ips() looks nodes up by host name, and pods of this job's engine have no host names",
            hint="run it with --engine kubernetes; under Ray, ray.nodes() returns the addresses",
        )
    pod, _, domain = pattern.partition(".")
    hosts = {pod.format(job_id=job_id, index=index): "" for index in indexes}
    workers = names.WORKERS.format(job_id=job_id)
    others = {pod.format(job_id=job_id, index=i): f"{workers}-{i - 1}" for i in indexes if i}
    here = socket.gethostname()
    hosts |= {h: os.environ[names.POD_IP] for h in hosts if here in (h, others.get(h))}
    domain = domain.format(job_id=job_id)

    def has_quorum() -> bool:
        for host in [host for host, address in hosts.items() if not address]:
            also = others.get(host, "")
            found_at = _look_up(f"{host}.{domain}")
            hosts[host] = found_at or (_look_up(f"{also}.{domain}") if also else "")
        return sum(map(bool, hosts.values())) >= wanted

    if not wait_until(has_quorum, timeout_s=timeout_s, every_s=_EVERY_S):
        missing = [host for host, address in hosts.items() if not address]
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise TimeoutError(
            f"{len(indexes) - len(missing)} of {len(indexes)} nodes have an address after {timeout_s:g} s, "
            f"but {wanted} are required; missing: {', '.join(missing[:_SHOWN])}{more}"
        )
    return [address for address in hosts.values() if address]


def _look_up(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""
