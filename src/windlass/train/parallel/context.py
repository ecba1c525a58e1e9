"""One process of a training run: its rank, its device, its output folder, and exchanges with other ranks.

`get_context()` works under `windlass run`, under plain torchrun, and in one process without a launcher, where
every collective is the identity. Everything in `windlass.train` uses it, and no other module reads a
launcher's variables. Plain values are exchanged as JSON, so that receiving one runs no code. torch's own
object collectives unpickle whatever a peer sends. This module is independent of models, data and strategies.
"""

from __future__ import annotations

import atexit
import base64
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from windlass import names
from windlass.errors import ProtocolError, SpecError
from windlass.exchange_threads import wait_for_exchange_threads
from windlass.train.preemption import Preemption
from windlass.wire.rank_reports import report

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


_HINT = (
    "exchange None, bool, int, float, str, bytes, lists, tuples and dicts of them; "
    "torch.distributed.all_gather_object exchanges other objects, by pickle"
)
logger = logging.getLogger(__name__)


def gather_values(value: Any, device: torch.device) -> list[Any]:
    """Return the value of every rank, in rank order."""
    own = _to_tensor(value, device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([own.numel()], dtype=torch.int64, device=device))
    counts = [int(size) for size in sizes]
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device)
    padded[: own.numel()] = own
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return [_from_tensor(part[:count]) for part, count in zip(parts, counts, strict=True)]


def broadcast_value(value: Any, device: torch.device) -> Any:
    """Return rank 0's value."""
    is_source = dist.get_rank() == 0
    own = _to_tensor(value if is_source else None, device)
    size = torch.tensor([own.numel()], dtype=torch.int64, device=device)
    dist.broadcast(size, src=0)
    data = own if is_source else torch.empty(int(size), dtype=torch.uint8, device=device)
    dist.broadcast(data, src=0)
    return _from_tensor(data)


def encode_plain(value: Any) -> bytes:
    """Return a plain value as JSON that keeps tuples, bytes and the types of keys."""
    return json.dumps(_to_json(value)).encode()


def decode_plain(data: bytes) -> Any:
    """Return the value that was passed to `encode_plain`."""
    try:
        return _from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"cannot decode a value from another rank: {error}") from error


def _to_tensor(value: Any, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(encode_plain(value)), dtype=torch.uint8).to(device)


def _from_tensor(data: torch.Tensor) -> Any:
    return decode_plain(data.cpu().numpy().tobytes())


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_to_json(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(one) for one in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"dict": [[_to_json(key), _to_json(one)] for key, one in value.items()]}
    kind = type(value)
    raise SpecError(
        f"ranks exchange only plain values, not a {kind.__module__}.{kind.__qualname__}",
        hint=_HINT,
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_from_json(one) for one in content)
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "dict":
        return {_from_json(key): _from_json(one) for key, one in content}
    raise ValueError(f"unknown kind {kind!r:.40}")


atexit.register(wait_for_exchange_threads)  # registered early, so that it runs late


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Place of this process among the ranks of its job."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    num_nodes: int
    attempt: int  # number of restarts before this one
    device: torch.device
    out: Path  # the job's output folder, created by its first writer
    preemption: Preemption

    @property
    def is_main(self) -> bool:
        """True if this rank writes and prints for all."""
        return self.rank == 0

    def mesh(self, shape: str = "ddp") -> DeviceMesh | None:
        """Return the ranks as torch's DeviceMesh, with the axes of a shape like "fsdp=8,dp=2".

        Returns None for one process. Call it on every rank, with the same shape.
        """
        from windlass.train.parallel.shape import read_shape
        from windlass.train.parallel.strategies import make_mesh  # it imports this module

        sizes = {"world_size": self.world_size, "local_world_size": self.local_world_size}
        return make_mesh(read_shape(shape, **sizes), self.device)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.total(0.0)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on every rank.

        Values are exchanged as JSON, never by pickle. They may be None, bool, int, float, str, bytes, and
        lists, tuples and dicts of them.
        """
        if not _has_group():
            return [decode_plain(encode_plain(value))]
        return gather_values(value, _exchange_device(self.device))

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank. It accepts the same types as `gather`."""
        if not _has_group():
            return decode_plain(encode_plain(value))
        return broadcast_value(value, _exchange_device(self.device))

    def total(self, *numbers: float) -> tuple[float, ...]:
        """Return each number summed over all ranks."""
        if not _has_group():
            return tuple(float(number) for number in numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=_exchange_device(self.device))
        dist.all_reduce(sums)
        return tuple(sums.tolist())

    def report(self, step: int | None = None, total: int | None = None, **metrics: float) -> None:
        """Report this rank's progress to the job's live view and `windlass status`, if it runs in a job."""
        report(step=step, total=total, **metrics)


_context: tuple[object, Context] | None = None


def get_context(*, backend: str | None = None, device: str | None = None) -> Context:
    """Return this process's context. Later calls return the same one.

    The first call chooses the CUDA device and listens for SIGTERM. It also joins the process group if a
    launcher set RANK and WORLD_SIZE and the process has not joined yet.

    backend: torch.distributed's backend (default: "gloo" on CPU, "cpu:gloo,cuda:nccl" on GPUs).
    device: such as "cpu" or "cuda:1" (default: this rank's GPU, if every rank of the node has one).
    """
    global _context
    key = (os.getpid(), os.environ.get(names.RANK), os.environ.get(names.WORLD_SIZE), _has_group())
    if _context is not None and _context[0] == key:
        known = _context[1]
        if device is None or torch.device(device).type == known.device.type:
            return known
        if dist.is_initialized():
            raise SpecError(
                f"this process joined its group on {known.device}, but {device} is requested",
                hint="pass device= to the first get_context() or trainer",
            )
    context = _make_context(os.environ, backend=backend, device=device)
    _context = ((*key[:3], _has_group()), context)
    return context


def _make_context(
    environ: Mapping[str, str], *, backend: str | None, device: str | None
) -> Context:
    # A data loader's worker is not a rank.
    is_worker = torch.utils.data.get_worker_info() is not None
    local_rank = _read(environ, names.LOCAL_RANK, 0)
    local_world_size = _read(environ, names.LOCAL_WORLD_SIZE, 1)
    chosen = _choose_device(device, local_rank, local_world_size)
    if not is_worker:
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        _join(environ, backend or ("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"))
    preemption = Preemption()
    if not is_worker:
        preemption.listen()
    rank, world_size = (
        (dist.get_rank(), dist.get_world_size())
        if _has_group()
        else (_read(environ, names.RANK, 0), _read(environ, names.WORLD_SIZE, 1))
    )
    return Context(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node=_read(environ, names.GROUP_RANK, 0),
        num_nodes=_read(environ, names.GROUP_WORLD_SIZE, max(1, world_size // local_world_size)),
        attempt=count_attempt(environ),
        device=chosen,
        out=Path(environ.get(names.OUT) or "out").absolute(),
        preemption=preemption,
    )


def _join(environ: Mapping[str, str], backend: str) -> None:
    """Join the process group, if there is one."""
    if _has_group() or names.RANK not in environ or names.WORLD_SIZE not in environ:
        return
    if not dist.is_available():
        if _read(environ, names.WORLD_SIZE, 1) > 1:
            raise SpecError(
                f"{names.WORLD_SIZE} is {environ[names.WORLD_SIZE]}, but this torch has no torch.distributed",
                hint="install a build of torch with it",
            )
        return
    if missing := [name for name in (names.MASTER_ADDR, names.MASTER_PORT) if name not in environ]:
        if _read(environ, names.WORLD_SIZE, 1) == 1:
            return
        raise SpecError(
            f"{names.WORLD_SIZE} is {environ[names.WORLD_SIZE]}, but {' and '.join(missing)} is not set",
            hint="start the ranks with `windlass run` or torchrun, which set all of them",
        )
    if _is_restarted_by_torchrun(environ):
        # torchrun keeps its store over restarts, so gloo would find the addresses of exited ranks
        store, rank, world_size = next(iter(dist.rendezvous("env://")))
        store = dist.PrefixStore(f"attempt-{count_attempt(environ)}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    else:
        dist.init_process_group(backend)


def _is_restarted_by_torchrun(environ: Mapping[str, str]) -> bool:
    """Return whether the store has keys of an earlier attempt, and all ranks agree on its number.

    Agents of several nodes count their restarts independently.
    """
    return (
        environ.get(names.TORCHELASTIC_USE_AGENT_STORE) == str(True)
        and names.JOB_ID not in environ
        and _read(environ, names.TORCHELASTIC_RESTART_COUNT, 0) > 0
        and _read(environ, names.GROUP_WORLD_SIZE, 1) == 1
    )


def _choose_device(requested: str | None, local_rank: int, local_world_size: int) -> torch.device:
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested is not None:
        try:
            device = torch.device(requested)
        except RuntimeError as error:
            raise SpecError(
                f"unknown device {requested!r}", hint='use "cpu", "cuda" or "cuda:1"'
            ) from error
        if device.type == "cuda" and (device.index or 0) >= num_gpus:
            raise SpecError(
                f"device {requested!r} does not exist: this process sees {num_gpus} GPUs",
                hint='omit it or use "cpu"; `windlass doctor` shows what torch sees',
            )
        if device.type == "cuda" and device.index is None:
            return torch.device("cuda", local_rank if local_rank < num_gpus else 0)
        return device
    if num_gpus >= local_world_size:
        return torch.device("cuda", local_rank)
    if num_gpus:
        logger.warning(
            "this node has %d ranks but sees %d GPUs, so it trains on the CPU; hint: "
            'get_context(device="cuda:0") uses one anyway',
            local_world_size,
            num_gpus,
        )
    return torch.device("cpu")


def count_attempt(environ: Mapping[str, str]) -> int:
    """Return how many times Windlass or torchrun restarted the ranks, including a torchrun inside a job."""
    ours, torchruns = (
        _read(environ, names.ATTEMPT, 0),
        _read(environ, names.TORCHELASTIC_RESTART_COUNT, 0),
    )
    is_windlass_rank = names.JOB_ID in environ and environ[names.JOB_ID] == environ.get(
        names.TORCHELASTIC_RUN_ID
    )
    return ours if is_windlass_rank else ours + torchruns


def _read(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise SpecError(
            f"{name} must be a number, not {text!r:.40}",
            hint="a launcher sets it; unset it to train in one process",
        ) from None


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _exchange_device(device: torch.device) -> torch.device:
    """Return the device for exchanging small numbers. The CPU, if possible, avoids waiting for kernels."""
    return torch.device("cpu") if "gloo" in str(dist.get_backend_config()) else device
