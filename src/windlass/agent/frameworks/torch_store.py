"""The stores where ranks meet: a file on one machine, and torch's own TCPStore in a process for each attempt.

Ranks of one machine that join a group by `env://` meet in a file that only their user can open. The TCPStore
is for ranks on several machines, and for scripts and their own processes that open a client of it themselves.
As under torchrun it is there before any rank is, so no rank has to wait for another to open it, and rank 0
may return early. It binds its port itself, which leaves no moment for a neighbour to take it; where all nodes
are on this machine, at the loopback address alone. It is a fork of the fork server and exists only where that
has imported torch; elsewhere rank 0 opens it (see `agent.node.master_port`). Ranks that take calls share one
store for all calls, and each process group has a part of it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys

from windlass import names

TYPE_CHECKING = False  # typing's own; what is imported here delays the import of torch
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

_RENDEZVOUS = "torch.distributed.rendezvous"
_TOLD = (names.MASTER_ADDR, names.MASTER_PORT, names.TORCHELASTIC_USE_AGENT_STORE)
_LOOPBACK = "127."
_BACKLOG = 2048  # as torch's own

_meeting: dict[str, str] = {}  # what this rank was told of its meeting last


def _is_possible() -> bool:
    """Whether torch is here already, with a TCPStore to be had and ranks that can share it."""
    rendezvous = sys.modules.get(_RENDEZVOUS)
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


def share_store(told: Mapping[str, str], name_part: Callable[[], str] | None = None) -> None:
    """Set where torch finds the store when a process group of this rank is initialised by `env://`.

    Ranks of one machine meet in a file that other users cannot open: a TCPStore admits anyone who can reach
    it. A rank that takes calls gives each process group a part of the store, named by `name_part`, because
    torch writes the same keys for each.
    """
    _meeting.clear()
    _meeting.update({name: told.get(name, "") for name in _TOLD})
    _meeting[names.WORLD_SIZE] = os.environ.get(names.WORLD_SIZE, "1")
    if _meeting[names.WORLD_SIZE] != "1" and names.STORE in os.environ:
        _meeting[names.STORE] = os.environ[names.STORE]
    elif name_part is None or _meeting[names.TORCHELASTIC_USE_AGENT_STORE] != str(True):
        return
    if _RENDEZVOUS in sys.modules:
        _set_store(sys.modules[_RENDEZVOUS], name_part)
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(lambda module: _set_store(module, name_part)))


def _set_store(rendezvous: Any, name_part: Callable[[], str] | None) -> None:
    create = rendezvous._create_c10d_store  # noqa: SLF001 - there is no other way in
    if hasattr(create, "is_ours"):
        return

    def create_store(
        host: str, port: int, rank: int, world_size: int, timeout: Any, *more: Any, **named: Any
    ) -> Any:
        distributed = sys.modules["torch.distributed"]
        part = name_part() if name_part is not None else ""
        asked = {
            names.MASTER_ADDR: str(host),
            names.MASTER_PORT: str(port),
            names.WORLD_SIZE: str(world_size),
            names.TORCHELASTIC_USE_AGENT_STORE: os.environ.get(
                names.TORCHELASTIC_USE_AGENT_STORE, ""
            ),
        }
        if names.STORE in _meeting and asked.items() <= _meeting.items():
            file = _meeting[names.STORE] + (part.replace("/", "-") or "all")
            store = distributed.FileStore(file, -1)  # which is removed with its world
            store.set_timeout(timeout)
            return store
        store = create(host, port, rank, world_size, timeout, *more, **named)
        has_store = _meeting[names.TORCHELASTIC_USE_AGENT_STORE] == str(True)
        return distributed.PrefixStore(part, store) if part and has_store else store

    create_store.is_ours = True  # type: ignore[attr-defined]
    rendezvous._create_c10d_store = create_store  # noqa: SLF001


class _AfterImport:
    """Finder that calls `act` once with torch's rendezvous module, when that is imported."""

    def __init__(self, act: Callable[[Any], None]) -> None:
        self._act = act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name != _RENDEZVOUS:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._act(module)

            spec.loader.exec_module = exec_module
        return spec
