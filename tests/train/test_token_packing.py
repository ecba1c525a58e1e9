from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from windlass.errors import SpecError
from windlass.train.data.loader import Loader
from windlass.train.data.token_packing import IGNORED, PackedTokens, make_cu_seqlens, make_packs
from windlass.train.data.token_shards import TokenShards, TokenShardWriter


def make_shards(folder: Path, lengths: list[int], *, chat: bool = False) -> TokenShards:
    """Write documents in which no token occurs twice. In a chat, every second token is learned."""
    first = 1
    with TokenShardWriter(folder, vocab_size=None) as writer:
        for length in lengths:
            learned = [i % 2 for i in range(length)] if chat else None
            writer.add(range(first, first + length), learned)
            first += length
        writer.finish()
    return TokenShards([folder])


@pytest.mark.parametrize("length", [64, 512, 2048])
def test_short_and_long_documents_fill_the_rows(length: int) -> None:
    draw = random.Random(3)
    lengths = [int(draw.lognormvariate(5.0, 1.3)) for _ in range(1000)]  # some empty, some long
    packs = make_packs(lengths, length)
    assert packs.report.utilization >= 0.98
    assert packs.report.num_split == sum(n > length for n in lengths) > 0
    assert packs.report.dropped_tokens == 0
    seen = [set() for _ in lengths]  # type: list[set[int]]
    for row in range(len(packs)):
        pieces = packs.pieces(row)
        assert 0 < sum(size for _, _, size in pieces) <= length
        for document, start, size in pieces:
            places = set(range(start, start + size))
            assert not seen[document] & places
            seen[document] |= places
    assert [len(places) for places in seen] == lengths


def test_rows_hold_every_token_once_with_boundaries(tmp_path: Path) -> None:
    lengths = [3, 20, 1, 8, 5, 0, 2, 7]
    rows = PackedTokens(make_shards(tmp_path, lengths), 8, pad_token=0)
    assert str(rows.report).startswith("8 documents, 46 tokens in 6 rows, 95.8% used, 1 documents")
    tokens: list[int] = []
    for row in (rows[i] for i in range(len(rows))):
        is_padding = row["document_ids"] < 0
        tokens += row["input_ids"][~is_padding].tolist()
        assert row["input_ids"][is_padding].tolist() == [0] * int(is_padding.sum())
        begins = row["position_ids"] == 0
        changes = torch.ones(8, dtype=torch.bool)
        changes[1:] = row["document_ids"][1:] != row["document_ids"][:-1]
        assert torch.equal(begins, changes)
        is_learned = ~is_padding & ~begins
        assert torch.equal(row["labels"] != IGNORED, is_learned)
        assert torch.equal(row["labels"][is_learned], row["input_ids"][is_learned])
    assert sorted(tokens) == list(range(1, 47))
    with pytest.raises(IndexError, match="row 6 of 6"):
        rows[6]


def test_labels_are_masked_as_the_shard_says(tmp_path: Path) -> None:
    row = PackedTokens(make_shards(tmp_path, [5, 3], chat=True), 8)[0]
    assert row["labels"].tolist() == [-100, 2, -100, 4, -100, -100, 7, -100]


def test_one_document_per_row(tmp_path: Path) -> None:
    rows = PackedTokens(make_shards(tmp_path, [3, 12, 2]), 8, is_packed=False)
    assert [int((rows[i]["document_ids"] == 0).sum()) for i in range(4)] == [3, 8, 4, 2]
    assert rows.report.utilization == 17 / 32


def test_splits_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PackedTokens(make_shards(tmp_path, [3, 12, 2]), 8)
    assert "1 of 3 documents are longer than 8 tokens and were split" in caplog.text


def test_document_starts_in_a_batch(tmp_path: Path) -> None:
    rows = PackedTokens(make_shards(tmp_path, [5, 3, 6]), 8)
    ids = torch.stack([rows[0]["document_ids"], rows[1]["document_ids"]])
    assert ids.tolist() == [[0] * 6 + [-1] * 2, [0] * 5 + [1] * 3]
    assert make_cu_seqlens(ids).tolist() == [0, 6, 8, 13, 16]
    assert make_cu_seqlens(ids, size=7).tolist() == [0, 6, 8, 13, 16, 16, 16]
    with pytest.raises(SpecError, match="has 4 documents, but cu_seqlens only 4 places"):
        make_cu_seqlens(ids, size=4)


def test_loader_reads_rows_in_worker_processes(tmp_path: Path) -> None:
    rows = PackedTokens(make_shards(tmp_path, [5, 3, 6, 9, 2, 8, 8]), 8)
    here, there = (
        [
            step.micro_batches[0].data["input_ids"].tolist()
            for step in Loader(rows, batch=2, rank=0, world_size=1, num_workers=n).steps(stop=4)
        ]
        for n in (0, 1)
    )
    assert here == there
    assert len(here[0][0]) == 8


def test_invalid_packings_are_refused() -> None:
    with pytest.raises(SpecError, match="rows of 1 tokens"):
        make_packs([3], 1)
    with pytest.raises(SpecError, match="contain no tokens"):
        make_packs([0, 0], 8)
