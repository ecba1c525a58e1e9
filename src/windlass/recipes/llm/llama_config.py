"""Sizes of a Llama-shaped model, read from and written as the `config.json` of a Hugging Face folder.

Needs no torch: `train_framework` checks a folder with this module before any heavy import. A model that is
not Llama-shaped is reported with the reason, and runs as Hugging Face's own model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.errors import SpecError

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """RoPE scaling factors of Llama 3.1 and later, for sequences longer than the original training length."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama-shaped model."""

    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    is_tied: bool = False
    init_std: float = 0.02

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.head_size * self.num_heads

    @property
    def key_size(self) -> int:
        """Width of all key heads together, which equals that of the values."""
        return self.head_size * self.num_kv_heads

    @property
    def num_matmul_weights(self) -> int:
        """Number of weights that every token is multiplied with, including the head but not the embedding."""
        attention = self.hidden_size * 2 * (self.query_size + self.key_size)
        mlp = 3 * self.hidden_size * self.mlp_size
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size

    def count_flops(self, length: int) -> float:
        """Return the FLOPs per token of forward and backward pass, with attention counted in full."""
        attention = 12 * self.num_layers * self.query_size * length
        return 6.0 * self.num_matmul_weights + attention


def find_difference(config: Mapping[str, Any]) -> str:
    """Return why a `config.json` needs Hugging Face's own model, or "" if the built-in one fits."""
    architecture = (config.get("architectures") or ["a model without a name"])[0]
    if architecture not in _ARCHITECTURES:
        return f"{architecture} is not Llama-shaped"
    if config.get("hidden_act", "silu") != "silu":
        return f"its activation is {config['hidden_act']}"
    for name in ("attention_bias", "mlp_bias", "sliding_window"):
        if config.get(name):
            return f"it has {name}"
    if config.get("attention_dropout"):
        return "it has attention_dropout"
    if architecture.startswith("Mistral") and "sliding_window" not in config:
        return "it has a sliding_window by default"
    if config.get("quantization_config"):
        return "its weights are quantized"
    kind = _rope_of(config).get("rope_type", "default")
    return "" if kind in ("default", "llama3") else f"its positions are scaled by {kind!r}"


def read_llama_config(config: Mapping[str, Any]) -> LlamaConfig:
    """Build a LlamaConfig from a `config.json` of transformers 4 or 5."""
    if difference := find_difference(config):
        raise SpecError(
            f"our own Llama cannot load this model: {difference}", hint="pass --hf-model"
        )
    needed = ("num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size")
    if missing := [name for name in (*needed, "vocab_size") if config.get(name) is None]:
        raise SpecError(
            f"config.json has no {missing[0]}",
            hint="check that it is the complete config of a model",
        )
    num_heads = int(config["num_attention_heads"])
    rope = _rope_of(config)
    return LlamaConfig(
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        mlp_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_size=int(config.get("head_dim") or config["hidden_size"] // num_heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        rope_scaling=_read_scaling(rope),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        init_std=float(config.get("initializer_range", 0.02)),
    )


def make_hf_config(config: LlamaConfig) -> dict[str, Any]:
    """Return a `config.json` for a model without a Hugging Face folder, readable by transformers 4 and 5."""
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_length,
        }
    return {
        "architectures": [_ARCHITECTURES[0]],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.is_tied,
        "initializer_range": config.init_std,
        "max_position_embeddings": 131_072 if scaling else 8_192,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rope settings: `rope_parameters` in transformers 5, `rope_scaling` in transformers 4."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_type": rope.get("type", "default"), **rope}


def _read_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    if rope["rope_type"] != "llama3":
        return None
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_length=int(rope["original_max_position_embeddings"]),
    )
