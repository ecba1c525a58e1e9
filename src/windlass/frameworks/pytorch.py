"""The pytorch framework: starts ranks as torchrun does, with torch preloaded and its store already open.

A fork of node 0's fork server, which has imported torch, serves the store. If torch is not preloaded, rank 0
opens the store itself at the port that the lead reserved. Ranks that take calls share one store, and each
process group uses its own part of it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys

from windlass import names
from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework, RendezvousStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, NoReturn


_RENDEZVOUS = "torch.distributed.rendezvous"
_RENDEZVOUS_VARIABLES = (names.MASTER_ADDR, names.MASTER_PORT, names.TORCHELASTIC_USE_AGENT_STORE)
_LOOPBACK = "127."
_BACKLOG = 2048  # torch's own value

_rendezvous: dict[str, str] = {}  # the rendezvous variables that this rank received last
_TORCH = "torch"


def _is_possible() -> bool:
    """Return whether torch is already imported and offers a TCPStore that ranks can share."""
    rendezvous = sys.modules.get(_RENDEZVOUS)
    can_share = hasattr(rendezvous, "_create_c10d_store")
    return can_share and hasattr(sys.modules.get("torch.distributed"), "TCPStore")


def serve_store(address: str, preferred_port: int, report: Callable[[int], None]) -> NoReturn:
    """Open a store, report its port and serve until killed.

    If no store is possible, report port 0 and exit.
    """
    if not _is_possible():
        report(0)
        os._exit(0)
    # torch resolves the name of each peer address, which could take long with a slow name server
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    store = None
    for port in dict.fromkeys((preferred_port, 0)):
        try:
            store = _open_store(address, port)
            break
        except (OSError, RuntimeError):  # the port is taken: try any free one
            continue
    report(store.port if store is not None else 0)
    if store is None:
        os._exit(1)
    while True:
        signal.pause()


def _open_store(address: str, port: int) -> Any:
    """Open a TCPStore, on the loopback interface only if `address` is a loopback address.

    torch's own listener accepts clients on all addresses. To prevent that, torch gets a bound socket.
    """
    make = sys.modules["torch.distributed"].TCPStore
    if not address.startswith(_LOOPBACK):
        return make(address, port, is_master=True, wait_for_workers=False)
    with socket.create_server((address, port), backlog=_BACKLOG) as listening:
        port = listening.getsockname()[1]
        fd = listening.detach()  # torch closes it
    return make(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)


def share_store(variables: Mapping[str, str], name_part: Callable[[], str] | None = None) -> None:
    """Choose the store that torch uses when this rank initializes a process group with `env://`.

    Ranks on one machine use a file that other users cannot open, because a TCPStore accepts any client that
    can reach it. Torch writes the same keys for every process group. A rank that takes calls therefore gives
    each group its own part of the store, named by `name_part`.
    """
    _rendezvous.clear()
    _rendezvous.update({name: variables.get(name, "") for name in _RENDEZVOUS_VARIABLES})
    _rendezvous[names.WORLD_SIZE] = os.environ.get(names.WORLD_SIZE, "1")
    if _rendezvous[names.WORLD_SIZE] != "1" and names.STORE in os.environ:
        _rendezvous[names.STORE] = os.environ[names.STORE]
    elif name_part is None or _rendezvous[names.TORCHELASTIC_USE_AGENT_STORE] != str(True):
        return
    if _RENDEZVOUS in sys.modules:
        _set_store(sys.modules[_RENDEZVOUS], name_part)
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(lambda module: _set_store(module, name_part)))


def _set_store(rendezvous: Any, name_part: Callable[[], str] | None) -> None:
    create = rendezvous._create_c10d_store  # noqa: SLF001 - torch has no public hook
    if hasattr(create, "is_ours"):
        return

    def create_store(
        host: str, port: int, rank: int, world_size: int, timeout: Any, *more: Any, **named: Any
    ) -> Any:
        distributed = sys.modules["torch.distributed"]
        part = name_part() if name_part is not None else ""
        requested = {
            names.MASTER_ADDR: str(host),
            names.MASTER_PORT: str(port),
            names.WORLD_SIZE: str(world_size),
            names.TORCHELASTIC_USE_AGENT_STORE: os.environ.get(
                names.TORCHELASTIC_USE_AGENT_STORE, ""
            ),
        }
        if names.STORE in _rendezvous and requested.items() <= _rendezvous.items():
            file = _rendezvous[names.STORE] + (part.replace("/", "-") or "all")
            store = distributed.FileStore(file, -1)  # the agent removes the file with its world
            store.set_timeout(timeout)
            return store
        store = create(host, port, rank, world_size, timeout, *more, **named)
        has_store = _rendezvous[names.TORCHELASTIC_USE_AGENT_STORE] == str(True)
        return distributed.PrefixStore(part, store) if part and has_store else store

    create_store.is_ours = True  # type: ignore[attr-defined]
    rendezvous._create_c10d_store = create_store  # noqa: SLF001


class _AfterImport:
    """Import finder that calls `act` once, with torch's rendezvous module, after it is imported."""

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
    # a single rank may start its own processes, and their process groups must not use this store
    return _TORCH in preload and num_ranks > 1


FRAMEWORK = Framework(
    name="pytorch",
    preload=(_TORCH,),
    takes_commands=False,
    gives_list=True,
    count_procs=python_ranks.requested_procs,
    make_env=python_ranks.make_env,
    make_call_env=python_ranks.make_call_env,
    store=RendezvousStore(
        is_wanted=_is_store_wanted,
        serve=serve_store,
        share=share_store,
    ),
    apply_env=lambda: share_store(os.environ),
    is_consequence=python_ranks.has_lost_peer,
)
