"""Create the inputs of `llm.py` from a seed: a model folder with random weights, a tokenizer, and documents.

Nothing is downloaded. In `long`, every document fills a row. `mixed` has a realistic distribution of lengths,
with many short documents and a few that are longer than a row. Most words follow a rule, so the model has
something to learn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy

SHAPES = {  # layers, width, mlp, heads, kv heads, vocabulary
    "1b": (16, 2048, 8192, 32, 8, 128_256),
    "3b": (28, 3072, 8192, 24, 8, 128_256),
    "8b": (32, 4096, 14_336, 32, 8, 128_256),
    "70b": (80, 8192, 28_672, 64, 8, 128_256),
    "tiny": (2, 64, 128, 4, 2, 512),
}
LENGTH = 4096
_SPECIAL = 256  # special tokens at the end of the vocabulary, the first of which ends a document


def make_config(shape: str, *, layers: int | None = None) -> dict[str, Any]:
    """Return the `config.json` of a Llama of this shape, optionally with another number of layers."""
    from windlass.recipes.llm.llama_config import LlamaConfig, make_hf_config

    depth, width, mlp, heads, kv_heads, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        mlp_size=mlp,
        num_layers=layers or depth,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=width // heads,
        rope_theta=500_000.0,
        is_tied=True,
    )
    return make_hf_config(config)


def make_model(folder: Path, shape: str, *, seed: int = 0) -> None:
    """Create a folder with random bfloat16 weights and a word tokenizer."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from windlass.recipes.llm.llama import Llama
    from windlass.recipes.llm.llama_config import read_llama_config

    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(shape)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Llama(read_llama_config(config)).to(torch.bfloat16)
    model.init_weights(seed=seed)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    weights.pop("lm_head.weight")  # tied
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    num_words = SHAPES[shape][-1] - _SPECIAL
    words = {f"w{number}": number for number in range(num_words)} | {"</s>": num_words}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)


def make_documents(file: Path, *, kind: str, num_tokens: int, num_words: int, seed: int) -> None:
    """Write a JSONL file of documents with about `num_tokens` tokens."""
    rng = numpy.random.default_rng(seed)
    follower = numpy.random.default_rng(0).permutation(
        num_words
    )  # the rule does not depend on the seed
    with file.open("w", encoding="ascii") as lines:
        while num_tokens > 0:
            length = LENGTH - 1 if kind == "long" else int(rng.lognormal(6.3, 1.1)) + 8
            length = min(length, 4 * LENGTH)
            words = numpy.minimum(rng.zipf(1.3, length), num_words) - 1
            words = follow(words, rng.random(length) < 0.7, follower)
            lines.write(json.dumps({"text": " ".join(f"w{word}" for word in words)}) + "\n")
            num_tokens -= length + 1


def follow(words: Any, is_ruled: Any, follower: Any) -> Any:
    """Replace each ruled word by the follower of the word before it."""
    places = numpy.arange(len(words))
    is_ruled[0] = False
    begins = numpy.maximum.accumulate(numpy.where(is_ruled, 0, places))
    words = words[begins]
    for distance in range(1, int((places - begins).max(initial=0)) + 1):
        is_further = places - begins >= distance
        words[is_further] = follower[words[is_further]]
    return words


def make_work(folder: Path, *, shape: str, num_tokens: int, seed: int = 0) -> None:
    """Create missing `model/`, `long.jsonl` and `mixed.jsonl`. Exit if the folder has another size."""
    wanted = {"shape": shape, "num_tokens": num_tokens, "seed": seed}
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / "work.json"
    if about.is_file() and (found := json.loads(about.read_text())) != wanted:
        raise SystemExit(f"{folder} has other inputs: {found}\nhint: choose another folder")
    about.write_text(json.dumps(wanted))
    if not (folder / "model" / "tokenizer.json").is_file():
        make_model(folder / "model", shape, seed=seed)
    num_words = SHAPES[shape][-1] - _SPECIAL
    for kind in ("long", "mixed"):
        if not (file := folder / f"{kind}.jsonl").is_file():
            make_documents(file, kind=kind, num_tokens=num_tokens, num_words=num_words, seed=seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--tokens", type=int, default=8_000_000)
    given = parser.parse_args()
    make_work(given.folder, shape=given.shape, num_tokens=given.tokens)
