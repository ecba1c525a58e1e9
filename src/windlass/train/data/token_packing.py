"""Documents packed into rows of a fixed length, with their boundaries, little padding and no lost token.

`make_packs` is pure. It takes lengths and returns a plan (best fit, longest first). A document longer than a
row is split into pieces, and the report counts these. `PackedTokens` reads rows by that plan as a map dataset
for the loader. Labels follow transformers: not shifted, and -100 for tokens that are not learned.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from windlass.errors import SpecError
from windlass.train.data.token_shards import TokenShards

logger = logging.getLogger(__name__)

IGNORED = -100  # the label that torch's losses ignore
PADDING = -1  # document id of padding


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """Statistics of a packing. No token is ever dropped."""

    num_documents: int
    num_tokens: int
    num_packs: int
    num_split: int  # number of documents longer than a row
    num_pieces: int  # number of whole documents, and of pieces of split ones
    utilization: float  # share of places with a token, from 0 to 1
    dropped_tokens: int = 0

    def __str__(self) -> str:
        return (
            f"{self.num_documents} documents, {self.num_tokens} tokens in {self.num_packs} rows, "
            f"{self.utilization:.1%} used, {self.num_split} documents split, "
            f"{self.dropped_tokens} tokens dropped"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packs:
    """Pieces of documents in each row, as flat arrays, so that millions of them take little memory."""

    length: int
    documents: array[int]  # document of each piece
    starts: array[int]  # start of each piece in its document
    lengths: array[int]
    ends: array[int]  # end of each row, counted in pieces
    report: PackReport

    def __len__(self) -> int:
        return len(self.ends)

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        """Return (document, start, length) of each piece in a row."""
        span = slice(self.ends[row - 1] if row else 0, self.ends[row])
        return list(zip(self.documents[span], self.starts[span], self.lengths[span], strict=True))


def make_packs(lengths: Sequence[int], length: int, *, is_packed: bool = True) -> Packs:
    """Return rows of `length` tokens for documents of these lengths. Unpacked rows have one piece each."""
    if length < 2:
        raise SpecError(
            f"cannot make rows of {length} tokens",
            hint="a row needs at least 2 tokens, one of them to predict",
        )
    documents, starts, sizes = array("q"), array("q"), array("q")  # one entry for each piece
    for document, total in enumerate(lengths):
        for start in range(0, total, length):
            documents.append(document)
            starts.append(start)
            sizes.append(min(length, total - start))
    if not sizes:
        raise SpecError(
            "the data files contain no tokens",
            hint="check the paths and the contents of the data files",
        )
    rows = _fit(sizes, length) if is_packed else [[number] for number in range(len(sizes))]
    num_tokens = sum(lengths)
    report = PackReport(
        num_documents=len(lengths),
        num_tokens=num_tokens,
        num_packs=len(rows),
        num_split=sum(total > length for total in lengths),
        num_pieces=len(sizes),
        utilization=num_tokens / (len(rows) * length),
    )
    numbers = [number for row in rows for number in row]
    ends = array("q")
    for row in rows:
        ends.append(len(row) + (ends[-1] if ends else 0))
    return Packs(
        length=length,
        documents=array("q", map(documents.__getitem__, numbers)),
        starts=array("q", map(starts.__getitem__, numbers)),
        lengths=array("q", map(sizes.__getitem__, numbers)),
        ends=ends,
        report=report,
    )


def _fit(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return the pieces of each row. Each piece, longest first, goes to the fullest row with room."""
    rows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(length + 1)]  # rows by their free places
    spaces = 0  # bit n: some row has n free places
    for number in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[number]
        if fitting := spaces >> size:
            space = size + (fitting & -fitting).bit_length() - 1
            row = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
            rows[row].append(number)
        else:
            space, row = length, len(rows)
            rows.append([number])
        if left := space - size:
            with_space[left].append(row)
            spaces |= 1 << left
    return rows


class PackedTokens:
    """Rows of tokens as a map dataset: input_ids, labels, position_ids, document_ids, each of `length`.

    Positions start at 0 in each document. Documents of a row are numbered from 0, and padding has the number
    PADDING. The first token of a piece has no label, because the piece has no token before it to predict it.
    """

    is_read_in_background = True  # a thread can read it, because it draws no random numbers

    def __init__(
        self, shards: TokenShards, length: int, *, pad_token: int = 0, is_packed: bool = True
    ) -> None:
        self.shards = shards
        self.pad_token = pad_token
        self.packs = make_packs(shards.lengths(), length, is_packed=is_packed)
        logger.info("packed: %s", self.report)
        if self.report.num_split:
            logger.warning(
                "%d of %d documents are longer than %d tokens and were split",
                self.report.num_split,
                self.report.num_documents,
                length,
            )

    @property
    def report(self) -> PackReport:
        return self.packs.report

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        length = self.packs.length
        input_ids = torch.full((length,), self.pad_token, dtype=torch.int64)
        labels = torch.full((length,), IGNORED, dtype=torch.int64)
        position_ids = torch.empty(length, dtype=torch.int64)
        document_ids = torch.full((length,), PADDING, dtype=torch.int32)
        place = 0
        for number, (document, start, size) in enumerate(self.packs.pieces(row)):
            tokens, learned = self.shards.read(document, start, start + size)
            span = slice(place, place + size)
            input_ids[span] = tokens
            labels[span] = tokens.masked_fill(~learned, IGNORED)
            labels[place] = IGNORED
            position_ids[span] = torch.arange(size)
            document_ids[span] = number
            place += size
        position_ids[place:] = torch.arange(length - place)
        return {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": position_ids,
            "document_ids": document_ids,
        }


def make_cu_seqlens(document_ids: Any, *, size: int | None = None) -> Any:
    """Return the starts of documents in a flattened batch of rows, and its end, for varlen attention.

    Padding is a separate document.

    size: length of the result, padded with the end, so that a compiled model sees only one shape (default:
    unpadded).
    """
    rows = document_ids.reshape(-1, document_ids.shape[-1])
    begins = torch.ones_like(rows, dtype=torch.bool)
    begins[:, 1:] = rows[:, 1:] != rows[:, :-1]
    starts = begins.flatten().nonzero().flatten().to(torch.int32)
    num_ends = 1 if size is None else size - len(starts)
    if num_ends < 1:
        raise SpecError(
            f"the batch has {len(starts)} documents, but cu_seqlens only {size} places",
            hint=f"use a size of at least {len(starts) + 1}",
        )
    return torch.cat([starts, starts.new_full((num_ends,), rows.numel())])
