"""Random numbers of the data, apart from those of the model.

A dataset may draw from Python's, numpy's and torch's global generators. Here they are seeded for a sample,
and the training's own state is put back afterwards: what a sample looks like is then a function of (seed,
epoch, sample), and the model's random numbers do not depend on how the data was read. Used by the readers.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def seed_all(*parts: int) -> None:
    """Seed the global generators of this process, CPU only, from these numbers."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFF_FFFF)


class SideRandom:
    """A context in which the global generators are the data's own; the next time they go on from there.

    Unless every sample is seeded anyway: then its state need not be kept.
    """

    def __init__(self, *, goes_on: bool) -> None:
        self._goes_on = goes_on
        self._data: tuple[Any, ...] | None = None
        self._training: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._training = get_states()
        if self._data is not None:
            set_states(self._data)

    def __exit__(self, *_: object) -> None:
        if self._goes_on:
            self._data = get_states()
        set_states(self._training)


def get_states() -> tuple[Any, ...]:
    """Of the global generators of this process, CPU only."""
    numpy = sys.modules.get("numpy")
    return (
        random.getstate(),
        torch.default_generator.get_state(),
        None if numpy is None else numpy.random.get_state(),
    )


def are_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether nobody has drawn a number in between."""
    return (
        before[0] == after[0]
        and torch.equal(before[1], after[1])
        and (before[2] is None) == (after[2] is None)
        and (before[2] is None or _is_same_numpy(before[2], after[2]))
    )


def _is_same_numpy(before: Any, after: Any) -> bool:
    return before[2:] == after[2:] and bool((before[1] == after[1]).all())


def set_states(states: tuple[Any, ...]) -> None:
    """Of the global generators of this process, as they were."""
    of_python, of_torch, of_numpy = states
    random.setstate(of_python)
    torch.default_generator.set_state(of_torch)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
