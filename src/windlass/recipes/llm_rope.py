"""Rotary positions as Llama has them, with the scaling of Llama 3.1: tables once a step, a rotation a layer.

Computed from the config at each step rather than kept in buffers, which a model made on the meta device or
loaded from a checkpoint would lose. Halves are rotated as in Hugging Face's weights, not pairs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from windlass.recipes.llm_config import LlamaConfig, RopeScaling


def make_rope(config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin for positions (rows, length), as (rows, length, 1, head_size / 2) in float32."""
    angles = positions[:, :, None, None].float() * _make_frequencies(config, positions.device)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate (rows, length, heads, head_size) by its positions, in float32."""
    cos, sin = rope
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _make_frequencies(config: LlamaConfig, device: torch.device) -> Tensor:
    exponents = torch.arange(0, config.head_size, 2, device=device).float() / config.head_size
    frequencies = 1.0 / config.rope_theta**exponents
    return _scale(frequencies, config.rope_scaling) if config.rope_scaling else frequencies


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow rotations are stretched, fast ones are kept, and those between are blended."""
    lengths = 2 * math.pi / frequencies
    low = scaling.original_length / scaling.low_freq_factor
    high = scaling.original_length / scaling.high_freq_factor
    share = (scaling.original_length / lengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    stretched = frequencies / scaling.factor
    blended = (1 - share) * stretched + share * frequencies
    between = (lengths <= low) & (lengths >= high)
    return torch.where(between, blended, torch.where(lengths > low, stretched, frequencies))
