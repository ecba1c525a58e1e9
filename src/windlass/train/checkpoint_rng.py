"""The random generators of one rank: what they hold, as bytes, and back.

Python's, numpy's (if it is imported), torch's, and this rank's CUDA generator. At another world size the
old states fit nobody: new ones are derived from the seed, the step and the rank. Called by checkpoints.py
only.
"""

from __future__ import annotations

import hashlib
import io
import random
import sys
from typing import Any

import torch


def read_rng() -> bytes:
    """The generators' states now."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (str(name), [int(key) for key in keys], *rest)
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    buffer = io.BytesIO()
    torch.save(states, buffer)
    return buffer.getvalue()


def restore_rng(data: bytes) -> None:
    """Let the generators go on where `read_rng` found them."""
    states = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def derive_rng(*, seed: int, step: int, rank: int, world_size: int) -> None:
    """Start the generators from these numbers: the same numbers give the same states."""
    text = f"windlass rng {seed} {step} {rank} {world_size}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    random.seed(number)
    torch.manual_seed(number % 2**63)  # CUDA's too
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)
