"""Rows of tokens as the models here take them: labels shifted, documents told by their offsets.

`make_rows` makes tokens of JSONL once and packs them; `collate_rows` joins rows to a batch, on the CPU, where
counting documents costs no wait for a GPU. Called by `train_framework`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.recipes.llm_attention import pad_offsets
from windlass.train.data.token_cache import cache_tokens
from windlass.train.data.token_packing import IGNORED, PackedTokens, make_cu_seqlens


def make_rows(
    file: str, tokenizer: Any, *, cache: Path, length: int, is_packed: bool, vocab_size: int
) -> PackedTokens:
    """The rows of a JSONL file, or of all in a folder."""
    shards = cache_tokens(file, tokenizer, cache=cache, vocab_size=max(vocab_size, len(tokenizer)))
    padding = tokenizer.pad_token_id
    padding = tokenizer.eos_token_id if padding is None else padding
    return PackedTokens(shards, length, pad_token=padding or 0, is_packed=is_packed)


def make_collate(*, is_packed: bool) -> Any:
    """Joins rows to a batch."""
    return partial(collate_rows, is_packed=is_packed)


def collate_rows(rows: list[dict[str, Tensor]], *, is_packed: bool) -> dict[str, Tensor]:
    """tokens, labels (what is to follow each token), and for packed rows positions and offsets."""
    labels = torch.stack([row["labels"] for row in rows])
    batch = {
        "tokens": torch.stack([row["input_ids"] for row in rows]),
        "labels": torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED),
    }
    if not is_packed:  # padding comes last, where no token of the document looks
        return batch
    starts = make_cu_seqlens(torch.stack([row["document_ids"] for row in rows]))
    if len(starts) == len(rows) + 1:  # one document a row, for which there are faster kernels
        return batch
    positions = torch.stack([row["position_ids"] for row in rows])
    return {**batch, "positions": positions, "offsets": pad_offsets(starts)}


def count_valid(batch: dict[str, Tensor]) -> Tensor:
    """How many tokens of a batch count in the loss."""
    return (batch["labels"] != IGNORED).sum()
