"""Tokenized documents on disk, as flat little-endian numbers that every process maps into memory.

A shard is a folder with these files:

- tokens.bin: the tokens (uint16 or uint32)
- ends.bin: the end of each document (int64)
- learned.bin: 1 for each learned token, otherwise 0 (uint8). Missing if all tokens are learned
- index.json: the sizes of the others, written last

A folder without an index, or with other sizes, is not a shard. Written by token_cache, read by token_packing.
"""

from __future__ import annotations

import json
import mmap
import os
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from windlass.errors import SpecError

FORMAT = "windlass-tokens-1"
_INDEX = "index.json"
_CODES = {"uint16": "H", "uint32": "I"}  # type codes of the array module


class TokenShardWriter:
    """Writer of one shard, document by document, into a folder that no process reads yet.

    with TokenShardWriter(folder, vocab_size=32000) as writer:
        writer.add([1, 2, 3])
        writer.finish()
    """

    def __init__(self, folder: Path, *, vocab_size: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.dtype = "uint16" if vocab_size is not None and vocab_size <= 2**16 else "uint32"
        self.num_tokens = self.num_documents = self.num_learned = 0
        self._files: dict[str, BinaryIO] = {
            name: (folder / name).open("wb") for name in ("tokens.bin", "ends.bin", "learned.bin")
        }
        self._is_all_learned = True

    def add(self, tokens: Sequence[int], learned: Sequence[int] | None = None) -> None:
        """Add a document. `learned` has a 1 for each token that labels keep (default: all)."""
        try:
            numbers = array(_CODES[self.dtype], tokens)
        except OverflowError:
            raise SpecError(
                f"document {self.num_documents} has token {max(tokens)}, which {self.dtype} cannot hold",
                hint="the tokenizer exceeds its vocabulary; pass its actual vocab_size",
            ) from None
        mask = bytes([1]) * len(numbers) if learned is None else bytes(map(bool, learned))
        if len(mask) != len(numbers):
            raise SpecError(
                f"document {self.num_documents} has {len(numbers)} tokens, but a mask of {len(mask)}",
                hint="pass one number for each token",
            )
        self.num_documents += 1
        self.num_tokens += len(numbers)
        self.num_learned += sum(mask)
        self._is_all_learned &= learned is None
        self._files["tokens.bin"].write(numbers.tobytes())
        self._files["ends.bin"].write(self.num_tokens.to_bytes(8, "little"))
        self._files["learned.bin"].write(mask)

    def __enter__(self) -> TokenShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def finish(self, about: Mapping[str, Any] | None = None) -> None:
        """Flush everything to disk, with the index last."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if self._is_all_learned:
            (self.folder / "learned.bin").unlink()
        index = {
            "format": FORMAT,
            "dtype": self.dtype,
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "num_learned": self.num_learned,
            "files": {p.name: p.stat().st_size for p in sorted(self.folder.glob("*.bin"))},
            "about": dict(about or {}),
        }
        with (self.folder / _INDEX).open("wb") as file:
            file.write(json.dumps(index, indent=1).encode())
            file.flush()
            os.fsync(file.fileno())


class TokenShard:
    """Shard that is mapped into memory."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = _read_index(self.folder)
        if index is None:
            raise SpecError(
                f"{self.folder} is not a complete token shard",
                hint="delete the folder; the next run tokenizes the data files again",
            )
        self.num_documents: int = index["num_documents"]
        self.num_tokens: int = index["num_tokens"]
        self.num_learned: int = index["num_learned"]
        self.about: dict[str, Any] = index["about"]
        self._tokens = _map_numbers(self.folder / "tokens.bin", getattr(torch, index["dtype"]))
        self._ends = _map_numbers(self.folder / "ends.bin", torch.int64)
        has_mask = "learned.bin" in index["files"]
        self._learned = _map_numbers(self.folder / "learned.bin", torch.uint8) if has_mask else None

    def lengths(self) -> list[int]:
        """Return the number of tokens of each document."""
        before = torch.cat([torch.zeros(1, dtype=torch.int64), self._ends[:-1]])
        return (self._ends - before).tolist() if self.num_documents else []

    def read(self, document: int, start: int = 0, stop: int | None = None) -> tuple[Any, Any]:
        """Return a document's tokens from `start` up to `stop`, and for each whether it is learned."""
        first = int(self._ends[document - 1]) if document else 0
        last = int(self._ends[document])
        begin, end = first + start, last if stop is None else min(last, first + stop)
        tokens = self._tokens[begin:end].to(torch.int64)
        if self._learned is None:
            return tokens, torch.ones(len(tokens), dtype=torch.bool)
        return tokens, self._learned[begin:end].to(torch.bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenShard, (self.folder,)  # each worker process maps the files itself


class TokenShards:
    """The documents of several shards, one after another."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.shards = tuple(TokenShard(folder) for folder in folders)
        self._ends: list[int] = []
        for shard in self.shards:
            self._ends.append(shard.num_documents + (self._ends[-1] if self._ends else 0))

    @property
    def num_documents(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_learned(self) -> int:
        """Number of tokens that labels keep."""
        return sum(shard.num_learned for shard in self.shards)

    def lengths(self) -> list[int]:
        """Return the number of tokens of each document."""
        return [length for shard in self.shards for length in shard.lengths()]

    def read(self, document: int, start: int = 0, stop: int | None = None) -> tuple[Any, Any]:
        """Return a document's tokens from `start` up to `stop`, and for each whether it is learned."""
        if not 0 <= document < self.num_documents:
            raise IndexError(f"document {document} of {self.num_documents}")
        number = bisect_right(self._ends, document)
        before = self._ends[number - 1] if number else 0
        return self.shards[number].read(document - before, start, stop)


def is_whole(folder: Path) -> bool:
    """Return whether the folder is a complete shard."""
    return _read_index(folder) is not None


def _read_index(folder: Path) -> dict[str, Any] | None:
    try:
        index = json.loads((folder / _INDEX).read_bytes())
        sizes = {name: (folder / name).stat().st_size for name in index["files"]}
        is_right = index["format"] == FORMAT and sizes == index["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return index if is_right else None


def _map_numbers(path: Path, dtype: Any) -> Any:
    if not path.stat().st_size:
        return torch.empty(0, dtype=dtype)
    with path.open("rb") as file:  # copy-on-write, because torch requires a writable buffer
        return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=dtype)
