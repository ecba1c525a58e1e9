"""pytorch: ranks as torchrun starts them. torch is imported ahead, its store opened ahead.

A fork of node 0's fork server that has imported torch serves the store. Without torch there, rank 0 opens the
store itself, at the port that the lead holds for it. Ranks that take calls share one store, in parts.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys

from windlass import names
from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework, MeetingStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, NoReturn


_RENDEZVOUS = "torch.distributed.rendezvous"
_TOLD = (names.MASTER_ADDR, names.MASTER_PORT, names.TORCHELASTIC_USE_AGENT_STORE)
_LOOPBACK = "127."
_BACKLOG = 2048  # as torch's own

_meeting: dict[str, str] = {}  # what this rank was told of its meeting last
_TORCH = "torch"


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


def _is_store_wanted(preload: Collection[str], num_ranks: int) -> bool:
    # a lone rank may start processes of its own, whose meetings no store of ours must answer
    return _TORCH in preload and num_ranks > 1


FRAMEWORK = Framework(
    name="pytorch",
    preload=(_TORCH,),
    takes_commands=False,
    gives_list=True,
    count_procs=python_ranks.count_as_asked,
    make_env=python_ranks.make_env,
    make_call_env=python_ranks.make_call_env,
    store=MeetingStore(
        is_wanted=_is_store_wanted,
        serve=serve_store,
        share=share_store,
    ),
    heed_env=lambda: share_store(os.environ),
    is_consequence=python_ranks.has_lost_peer,
)
