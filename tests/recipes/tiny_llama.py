"""Generated Llama with a few thousand weights, and a byte tokenizer. Nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windlass.recipes.llm.llama_config import LlamaConfig, RopeScaling

TINY = LlamaConfig(
    vocab_size=300,
    hidden_size=32,
    mlp_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    rope_scaling=RopeScaling(
        factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=32
    ),
)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with all bytes, then begin, end and padding, and with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate([*letters, "<s>", "</s>", "<pad>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: "
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}</s>{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_model(folder: Path, *, is_tied: bool = False, seed: int = 0) -> None:
    """Write a folder with random weights and their tokenizer, in the layout of a download."""
    from dataclasses import replace

    import torch

    from windlass.recipes.llm.llama import Llama
    from windlass.recipes.llm.model_build import save_llama

    model = Llama(replace(TINY, is_tied=is_tied))
    model.init_weights(seed=seed)
    save_llama(model, folder, dtype=torch.float32)
    write_tokenizer(folder)
