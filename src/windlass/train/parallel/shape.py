"""Shape of a world of ranks: "ddp", "fsdp", "fsdp=8,dp=2", "fsdp=4,tp=2".

This module is pure, without torch or environment. The trainer and the recipes read a shape, and `strategies`
applies it to a model.

dp: copies of the model. fsdp: ranks that share one copy, sharded. tp: ranks that share each layer's matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

AXES = ("dp", "fsdp", "tp")
WORDS = ("none", "ddp", "fsdp", "hsdp", "deepspeed")
_FORMS = 'write "none", "ddp", "fsdp", "hsdp", "deepspeed", or sizes like "fsdp=8,dp=2"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number of ranks of each axis. Their product is the world size."""

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    is_deepspeed: bool = False

    @property
    def world_size(self) -> int:
        return self.dp * self.fsdp * self.tp

    @property
    def data_ranks(self) -> int:
        """Number of ranks that see different samples, which excludes those that share layers."""
        return self.dp * self.fsdp

    @property
    def axes(self) -> dict[str, int]:
        """The axes with more than one rank, outermost first."""
        return {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}

    def __str__(self) -> str:
        text = ",".join(f"{axis}={size}" for axis, size in self.axes.items()) or "none"
        return f"deepspeed ({text})" if self.is_deepspeed else text


def read_shape(text: str, *, world_size: int, local_world_size: int | None = None) -> Shape:
    """Return the shape for `text` in a world of this size. Remaining ranks become copies (dp)."""
    word = (text or "none").strip().lower()
    if word in WORDS:
        return _shape_of_word(word, world_size, local_world_size or world_size)
    sizes = _read_sizes(word)
    fsdp, tp = sizes.get("fsdp", 1), sizes.get("tp", 1)
    shape = Shape(dp=sizes.get("dp", max(1, world_size // (fsdp * tp))), fsdp=fsdp, tp=tp)
    if shape.world_size != world_size:
        raise SpecError(
            f"the shape {text!r} needs {shape.world_size} ranks, but there are {world_size}",
            hint="dp x fsdp x tp must equal the number of ranks; omit dp, "
            'or write "ddp" or "fsdp", which support any number',
        )
    return shape


def _shape_of_word(word: str, world_size: int, local_world_size: int) -> Shape:
    if word == "fsdp":
        return Shape(fsdp=world_size)
    if word == "hsdp":
        return Shape(fsdp=local_world_size, dp=world_size // local_world_size)
    if word == "none" and world_size > 1:
        raise SpecError(
            f'strategy "none" trains {world_size} independent models',
            hint='use "ddp" or "fsdp", or start one process',
        )
    return Shape(dp=world_size, is_deepspeed=word == "deepspeed")


def _read_sizes(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, has_size, size = (piece.strip() for piece in part.partition("="))
        if axis not in AXES:
            what, known = ("axis", AXES) if has_size else ("strategy", WORDS)
            hint = did_you_mean(axis, known, otherwise=_FORMS)
            raise SpecError(f"unknown {what} {axis!r}", hint=hint)
        if axis in sizes or not size.isdecimal() or int(size) < 1:
            raise SpecError(f"invalid axis size {part.strip()!r}", hint=_FORMS)
        sizes[axis] = int(size)
    return sizes
