"""The store where ranks meet: torch's own TCPStore, in a process of its own for each attempt.

As under torchrun it is there before any rank is, so no rank has to wait for another to open it, and rank 0
may return early. It binds its port itself, which leaves no moment for a neighbour to take it; where all nodes
are on this machine, at the loopback address alone. It is a fork of the fork server and exists only where that
has imported torch; elsewhere rank 0 opens it (see `agent.node.master_port`). Ranks that take calls share one
store for all calls, and each process group has a part of it.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys

from windlass import names

TYPE_CHECKING = False  # typing's own; what is imported here delays the import of torch
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

_LOOPBACK = "127."
_BACKLOG = 2048  # as torch's own


def _is_possible() -> bool:
    """Whether torch is here already, with a TCPStore to be had and ranks that can share it."""
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    can_share = hasattr(rendezvous, "_create_c10d_store")
    return can_share and hasattr(sys.modules.get("torch.distributed"), "TCPStore")


def serve_store(address: str, preferred_port: int, tell: Callable[[int], None]) -> NoReturn:
    """Open a store, report its port and serve until killed; the port is 0 if no store is possible."""
    if not _is_possible():
        tell(0)
        os._exit(0)
    # torch asks for the name of each address it sees, and waits for a slow name server
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    store = None
    for port in dict.fromkeys((preferred_port, 0)):
        try:
            store = _open_store(address, port)
            break
        except (OSError, RuntimeError):  # taken: any other will do
            continue
    tell(store.port if store is not None else 0)
    if store is None:
        os._exit(1)
    while True:
        signal.pause()


def _open_store(address: str, port: int) -> Any:
    """torch would listen on all addresses and authenticate nobody: on one machine, listen on loopback."""
    make = sys.modules["torch.distributed"].TCPStore
    if not address.startswith(_LOOPBACK):
        return make(address, port, is_master=True, wait_for_workers=False)
    with socket.create_server((address, port), backlog=_BACKLOG) as listening:
        port = listening.getsockname()[1]
        fd = listening.detach()  # torch's from now on
    return make(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)


def share_store(told: Mapping[str, str], name_part: Callable[[], str]) -> None:
    """Give each process group of this rank a part of the store to itself, where there is one.

    torch writes the same keys for each, so that one would else find the addresses of the one before.
    """
    if told.get(names.TORCHELASTIC_USE_AGENT_STORE) != str(True):
        return
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    create = rendezvous._create_c10d_store  # noqa: SLF001 - there is no other way in
    if hasattr(create, "is_parted"):
        return

    def create_part(*args: Any, **kwargs: Any) -> Any:
        part = name_part()
        return sys.modules["torch.distributed"].PrefixStore(part, create(*args, **kwargs))

    create_part.is_parted = True  # type: ignore[attr-defined]
    rendezvous._create_c10d_store = create_part  # noqa: SLF001
