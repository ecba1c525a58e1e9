"""Exchange of plain values between ranks as JSON, so that receiving one runs no code.

Used by `context.Context`. torch's own object collectives unpickle what any peer sends.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import torch
import torch.distributed as dist

from windlass.errors import ProtocolError, SpecError

_HINT = (
    "exchange None, bool, int, float, str, bytes, lists, tuples and dicts of them; "
    "torch.distributed.all_gather_object exchanges other objects, by pickle"
)


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


def encode(value: Any) -> bytes:
    """Return a plain value as JSON that keeps tuples, bytes and the types of keys."""
    return json.dumps(_to_json(value)).encode()


def decode(data: bytes) -> Any:
    """Return the value that `encode` was given."""
    try:
        return _from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a rank sent a value that is not plain: {error}") from error


def _to_tensor(value: Any, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8).to(device)


def _from_tensor(data: torch.Tensor) -> Any:
    return decode(data.cpu().numpy().tobytes())


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
        f"ranks exchange plain values, and this is a {kind.__module__}.{kind.__qualname__}",
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
    raise ValueError(f"there is no kind {kind!r:.40}")
