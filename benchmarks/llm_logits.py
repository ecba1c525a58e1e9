"""Compare Windlass's logits of `llm.py`'s model with transformers', before and after an export.

    python benchmarks/llm_logits.py WORK [--length 4096]

`llm.py --only logits` runs it too. The reference is transformers in float32. The loss of accuracy of
transformers in bfloat16 counts as noise. The logits of Windlass, computed in bfloat16 as in training, must
not be further away.

The weights are then exported again, and transformers must return bit-identical logits. The program writes
one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from llm_work import LENGTH


def compare(folder: Path, *, length: int) -> dict[str, Any]:
    """Return distances from transformers' float32 logits, and whether an export has equal logits."""
    from windlass.recipes.llm.model_build import load_llama, save_llama

    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = read_logits(folder, torch.float32, length=length, device=device)
    theirs = read_logits(folder, torch.bfloat16, length=length, device=device)
    model = load_llama(folder, device=device)
    model.model.compute_dtype = torch.bfloat16
    if device == "cuda":
        model.compile_blocks()
    with torch.no_grad():
        ours = model(make_tokens(exact.shape[-1], length=length, device=device))
    with tempfile.TemporaryDirectory() as name:
        save_llama(model, name)
        back = read_logits(Path(name), torch.float32, length=length, device=device)
    return {
        "ours_bf16": distance(ours, exact),
        "hf_bf16": distance(theirs, exact),
        "is_export_equal": torch.equal(back, exact),
    }


def read_logits(folder: Path, dtype: torch.dtype, *, length: int, device: str) -> torch.Tensor:
    """Return transformers' logits for one row."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    tokens = make_tokens(model.config.vocab_size, length=length, device=device)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def make_tokens(num_words: int, *, length: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, num_words, (1, length), generator=generator).to(device)


def distance(near: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the distance relative to the norm of `exact`."""
    return float((near.float() - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--length", type=int, default=LENGTH)
    options = parser.parse_args()
    seen = compare(options.work / "model", length=options.length)
    sys.stdout.write("\n" + json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
