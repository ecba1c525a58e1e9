from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import SpecError
from windlass.train.data.token_cache import cache_tokens

FORK = multiprocessing.get_context("fork")
KEY = {"tokenizer_key": "counting"}


def encode_bytes(text: str) -> list[int]:
    return list(text.encode())


def encode_shifted(text: str) -> list[int]:
    return [byte + 1 for byte in text.encode()]


class Counting:
    """Tokenizer that counts its uses over all processes."""

    eos_token_id = 0

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, text: str) -> list[int]:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return encode_bytes(text)

    def count(self) -> int:
        return len(self.log.read_text(encoding="utf-8").splitlines())


class Pausing(Counting):
    """Tokenizer that reports when it has reached the middle of the data, and then never returns."""

    def __init__(self, log: Path, reached: int) -> None:
        super().__init__(log)
        self.reached = reached

    def __call__(self, text: str) -> list[int]:
        if text == "c":
            os.write(self.reached, b"x")
            signal.pause()
        return encode_bytes(text)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "ab"}\n{"text": "c"}\n', encoding="utf-8")
    return path


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "log")


def read(files: Path | list[Path], tokenizer: Any, cache: Path, **options: Any) -> list[list[int]]:
    shards = cache_tokens(files, tokenizer, cache=cache, **options)
    return [shards.read(i)[0].tolist() for i in range(shards.num_documents)]


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("tokens-*"))


def test_tokens_are_created_once(data: Path, counting: Counting, tmp_path: Path) -> None:
    for _ in range(3):
        documents = read(data, counting, tmp_path / "cache", tokenizer_key="counting")
        assert documents == [[97, 98, 0], [99, 0]]
    assert counting.count() == 2


def test_file_with_equal_content_shares_the_entry(
    data: Path, counting: Counting, tmp_path: Path
) -> None:
    (tmp_path / "copy.jsonl").write_bytes(data.read_bytes())
    both = [data, tmp_path / "copy.jsonl"]
    assert len(read(both, counting, tmp_path / "cache", tokenizer_key="counting")) == 4
    assert counting.count() == 2


def test_other_tokenizer_or_content_makes_a_new_entry(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert read(data, encode_bytes, cache) == [[97, 98], [99]]
    assert read(data, encode_shifted, cache) == [[98, 99], [100]]
    # the same length as before
    data.write_text('{"text": "ad"}\n{"text": "c"}\n', encoding="utf-8")
    assert read(data, encode_bytes, cache) == [[97, 100], [99]]
    assert len(entries(cache)) == 3
    old_s = data.stat().st_mtime - 3600
    os.utime(data, (old_s, old_s))  # old enough that its hash is cached
    assert read(data, encode_bytes, cache) == [[97, 100], [99]]
    assert len(list((cache / "hashes").iterdir())) == 1
    assert len(entries(cache)) == 3


def test_processes_started_together_tokenize_once(
    data: Path, counting: Counting, tmp_path: Path
) -> None:
    data.write_text("".join(f'{{"text": "{i}"}}\n' for i in range(300)), encoding="utf-8")
    gate = FORK.Barrier(4)

    def work() -> None:
        gate.wait(30)
        documents = read(data, counting, tmp_path / "cache", tokenizer_key="counting")
        os._exit(0 if len(documents) == 300 else 1)

    processes = [FORK.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert counting.count() == 300
    assert len(entries(tmp_path / "cache")) == 1


def test_remains_of_a_killed_process_are_ignored(
    data: Path, counting: Counting, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    read_end, write_end = os.pipe()
    pausing = Pausing(counting.log, write_end)
    process = FORK.Process(target=read, args=(data, pausing, cache), kwargs=KEY)
    process.start()
    assert os.read(read_end, 1) == b"x"
    os.kill(process.pid, signal.SIGKILL)  # it holds the lock and has half of the tokens
    process.join(30)
    assert [name.split(".")[1][:6] for name in entries(cache)] == ["making"]
    assert read(data, counting, cache, **KEY) == [[97, 98, 0], [99, 0]]
    assert counting.count() == 2
    os.close(read_end)
    os.close(write_end)


def test_old_remains_are_removed(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read(data, encode_bytes, cache)
    (name,) = entries(cache)
    whole, left = cache / name, cache / f"{name}.making-1-ab"
    left.mkdir()
    os.utime(left, (1, 1))
    (whole / "index.json").unlink()  # forces the tokens to be created again
    assert read(data, encode_bytes, cache) == [[97, 98], [99]]
    assert entries(cache) == [name]


def test_unpicklable_tokenizer_needs_a_name(data: Path, counting: Counting, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(SpecError, match=r"whether Counting is the tokenizer.*\n.*tokenizer_key="):
        cache_tokens(data, counting, cache=cache)
    with pytest.raises(SpecError, match=r"<lambda> is the tokenizer .*: it uses counting"):
        cache_tokens(data, lambda text: counting(text), cache=cache)
    with pytest.raises(SpecError, match="int is not a tokenizer"):
        cache_tokens(data, 3, cache=cache)
    assert entries(cache) == []


def test_rows_that_cannot_be_tokenized_are_named(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    data.write_text('{"text": "a"}\n\n{"txt": "b"}\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"train\.jsonl:3 has neither a text nor messages"):
        cache_tokens(data, encode_bytes, cache=cache)
    data.write_text('{"messages": [{"role": "user", "content": "a"}]}\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"train\.jsonl:1 has messages, .* no chat template"):
        cache_tokens(data, encode_bytes, cache=cache)
    for text in ("", "a"):  # nothing precedes a single token, so no token predicts it
        data.write_text(f'{{"text": "{text}"}}\n', encoding="utf-8")
        with pytest.raises(SpecError, match="has no tokens to train on in its 1 rows"):
            cache_tokens(data, encode_bytes, cache=cache)
    data.write_text('{"text": "a"}\n{"text": "cut \\ud83d"}\n', encoding="utf-8")
    with pytest.raises(
        SpecError, match=r"train\.jsonl:2 has half a character, '.ud83d', at position 4"
    ):
        cache_tokens(data, encode_bytes, cache=cache)
    assert entries(cache) == []  # no partial entry remains


def test_creation_is_logged(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cache_tokens(data, encode_bytes, cache=tmp_path / "cache")
    assert "train.jsonl: 2 documents, 3 tokens, 3 of them learned" in caplog.text


def test_a_cache_that_cannot_be_written_is_named(data, tmp_path):
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SpecError, match=f"cannot write to {cache}") as refused:
            cache_tokens(data, encode_bytes, cache=cache, **KEY)
        assert "use a folder" in refused.value.hint


def test_missing_data_file_is_not_reported_as_a_cache_error(data, tmp_path):
    class Vanishing:
        eos_token_id = 0

        def __call__(self, text: str) -> list[int]:
            raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/vocabulary.txt")

    with pytest.raises(PermissionError, match="vocabulary"):
        cache_tokens(data, Vanishing(), cache=tmp_path / "cache", **KEY)
