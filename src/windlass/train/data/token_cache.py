"""Cache of data files as tokens, keyed by the content of the file, the tokenizer and the options.

Every rank calls `cache_tokens` at the same time, without a process group. One process per file system makes
the tokens of a file, and the others wait and map them. Each data file has its own shard, so that only changed
files are tokenized again. Called by recipes and users.

`make_once` takes a lock, makes a folder under a temporary name, and renames it. The lock (flock) ends with
its process. On a file system without locks, each process makes its own folder and the first rename
wins. That costs more work, but never gives a wrong result.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from windlass.errors import SpecError, WaitTimeout
from windlass.train.data.jsonl import JsonlRows, find_files, read_kind
from windlass.train.data.text_tokenizer import TextTokenizer, encode_chat
from windlass.train.data.token_shards import FORMAT, TokenShards, TokenShardWriter, is_whole
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

_STALE_S = 3600.0  # a temporary folder unchanged for this long is orphaned
_NOT_WRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENAMETOOLONG),
)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_ROWS_AT_ONCE = 512  # a fast tokenizer spreads them over the CPU cores
# a file that was modified more recently may change again without a newer timestamp
_SETTLED_S = 2.0


def make_once(
    folder: Path,
    make: Callable[[Path], None],
    *,
    is_whole: Callable[[Path], bool],
    timeout_s: float = 86400.0,
) -> bool:
    """Make `folder` unless it exists and is complete. Return whether this call made it."""
    if is_whole(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f".{folder.name}.lock", str(folder), timeout_s):
            return False if is_whole(folder) else _make(folder, make, is_whole)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE or not _is_within(error.filename, folder.parent):
            raise
        raise SpecError(
            f"cannot write to {folder.parent}: {error.strerror}",
            hint="use a folder that this user can write to, on a disk with free space",
        ) from error


def _make(folder: Path, make: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> bool:
    _remove_leftovers(folder)
    unfinished = folder.parent / f"{folder.name}.making-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        make(unfinished)
        return _put_in_place(unfinished, folder, is_whole)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _is_within(name: object, folder: Path) -> bool:
    """Return whether an error concerns this folder. Errors on open files (disk full) have no file name."""
    if not isinstance(name, str | bytes):
        return True
    path, folder = Path(os.fsdecode(name)).absolute(), folder.absolute()
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _put_in_place(unfinished: Path, folder: Path, is_whole: Callable[[Path], bool]) -> bool:
    if folder.exists() and not is_whole(folder):
        logger.warning("%s is incomplete and is made again", folder)
        shutil.rmtree(folder, ignore_errors=True)
    try:
        unfinished.rename(folder)
    except OSError:
        if not is_whole(folder):  # otherwise another machine was faster
            raise
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    for left in folder.parent.glob(f"{folder.name}.making-*"):
        newest_s = max((p.stat().st_mtime for p in (left, *left.glob("*"))), default=0.0)
        if time.time() - newest_s > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _lock(path: Path, purpose: str, timeout_s: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not wait_until(
            lambda: _try_lock(descriptor, path),
            timeout_s=timeout_s,
            every_s=0.1,
            say=lambda s: logger.warning(
                "waiting for another process to make %s (%.0f s)", purpose, s
            ),
        ):
            raise WaitTimeout(
                f"{purpose} was not made by another process within {timeout_s:.0f} s",
                hint=f"check whether that process still runs (it holds {path}), then retry",
            )
        yield
    finally:
        with suppress(OSError):  # a child forked meanwhile would keep the lock after closing
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "%s: this file system has no locks, so other processes may do the same work", path
        )
    return True


def cache_tokens(
    files: str | Path | Iterable[str | Path],
    tokenizer: Any,
    *,
    cache: str | Path,
    ends_documents: bool = True,
    tokenizer_key: str | None = None,
    vocab_size: int | None = None,
) -> TokenShards:
    """Return the documents of JSONL files (`text` or `messages`) as tokens, from `cache` if possible.

    cache: a folder, preferably shared by all nodes. Otherwise each node tokenizes the files once.
    ends_documents: append the tokenizer's end token to each text that lacks it.
    tokenizer_key: a name for a tokenizer that is your own function.
    vocab_size: size of a vocabulary that the tokenizer does not report. At most 65536 halves the files.
    """
    wrapped = TextTokenizer(tokenizer, key=tokenizer_key, vocab_size=vocab_size)
    end = wrapped.end_token if ends_documents else None
    options = [FORMAT, wrapped.fingerprint(), end, wrapped.vocab_size]
    folders = []
    for path in find_files(files):
        key = hashlib.sha256(json.dumps([*options, hash_file(path, Path(cache))]).encode())
        folder = Path(cache) / f"tokens-{key.hexdigest()[:32]}"
        make_once(folder, _FileTokenizer(path, wrapped, end).make, is_whole=is_whole)
        folders.append(folder)
    return TokenShards(folders)


class _FileTokenizer:
    """Tokenizer of one data file."""

    def __init__(self, path: Path, tokenizer: TextTokenizer, end: int | None) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.end = end

    def make(self, folder: Path) -> None:
        started_s = time.monotonic()
        rows = JsonlRows(self.path)
        num_learnable = 0
        with TokenShardWriter(folder, vocab_size=self.tokenizer.vocab_size) as writer:
            numbers = iter(range(len(rows)))
            while some := list(islice(numbers, _ROWS_AT_ONCE)):
                for tokens, learned in self._encode(rows, some):
                    writer.add(tokens, learned)
                    # The first token is never learned, because no token predicts it.
                    num_learnable += sum(learned[1:]) if learned else max(0, len(tokens) - 1)
            if not num_learnable:
                raise SpecError(
                    f"{self.path} has no tokens to train on in its {len(rows)} rows",
                    hint="check whether their texts are empty",
                )
            writer.finish({"file": str(self.path)})
        logger.info(
            "%s: %d documents, %d tokens, %d of them learned, in %.1f s",
            self.path,
            writer.num_documents,
            writer.num_tokens,
            writer.num_learned,
            time.monotonic() - started_s,
        )

    def _encode(
        self, rows: JsonlRows, numbers: list[int]
    ) -> Iterator[tuple[list[int], list[int] | None]]:
        """Yield the tokens of these rows in order. Texts are tokenized together."""
        read = [(number, rows[number]) for number in numbers]
        kinds = [read_kind(row, partial(rows.where, number)) for number, row in read]
        for number, row in read:
            _check_characters(row, partial(rows.where, number))
        texts = [row["text"] for (_, row), kind in zip(read, kinds, strict=True) if kind == "text"]
        encoded = iter(self.tokenizer.encode(texts) if texts else [])
        for (number, row), kind in zip(read, kinds, strict=True):
            if kind == "messages":
                yield encode_chat(self.tokenizer, row, where=partial(rows.where, number))
            else:
                yield self._end(next(encoded)), None

    def _end(self, tokens: list[int]) -> list[int]:
        if self.end is None or (tokens and tokens[-1] == self.end):
            return tokens
        return [*tokens, self.end]


def _check_characters(row: dict[str, Any], where: Callable[[], str]) -> None:
    """Refuse half of a surrogate pair, left by a cut within a JSON escape. No tokenizer accepts it."""
    turns = row.get("messages") or ()
    values = [row.get("text"), *(turn.get("content") for turn in turns if isinstance(turn, dict))]
    for text in (value for value in values if isinstance(value, str)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SpecError(
                f"{where()} has half a character, {text[error.start]!a}, at position {error.start}",
                hint="the text was cut in the middle of a character; repair or remove it",
            ) from error


def hash_file(path: Path, cache: Path) -> str:
    """Return the hash of a file's content, which is read only if its size or modification time changed."""
    status = path.stat()
    facts = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    cached = cache / "hashes" / name
    try:
        return cached.read_text(encoding="ascii")[-64:]
    except OSError:
        pass
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if time.time() - status.st_mtime > _SETTLED_S:
        with suppress(OSError):  # only an optimization, and the cache may be read-only
            cached.parent.mkdir(parents=True, exist_ok=True)
            unfinished = cached.with_name(f"{name}.{os.getpid()}-{os.urandom(4).hex()}")
            unfinished.write_text(digest.hexdigest(), encoding="ascii")
            unfinished.replace(cached)
    return digest.hexdigest()
