from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from windlass.errors import SpecError
from windlass.train.data.token_shards import TokenShards, TokenShardWriter, is_whole


def write(folder: Path, *documents: list[int], vocab_size: int | None = None) -> Path:
    with TokenShardWriter(folder, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add(document)
        writer.finish({"file": "a.jsonl"})
    return folder


@pytest.mark.parametrize(("vocab_size", "num_bytes"), [(2**16, 2), (2**16 + 1, 4), (None, 4)])
def test_documents_round_trip(tmp_path: Path, vocab_size: int | None, num_bytes: int) -> None:
    one = write(tmp_path / "1", [1, 2, 65535], [], [4], vocab_size=vocab_size)
    two = write(tmp_path / "2", [5, 6], vocab_size=vocab_size)
    shards = TokenShards([one, two])
    assert (one / "tokens.bin").stat().st_size == 4 * num_bytes
    assert not (one / "learned.bin").exists()  # every token is learned
    assert shards.lengths() == [3, 0, 1, 2]
    assert [shards.read(i)[0].tolist() for i in range(4)] == [[1, 2, 65535], [], [4], [5, 6]]
    assert shards.read(0, 1, 2)[0].tolist() == [2]
    assert shards.read(3)[1].tolist() == [True, True]
    assert (shards.num_documents, shards.num_tokens, shards.num_learned) == (4, 6, 6)
    assert pickle.loads(pickle.dumps(shards)).read(3)[0].tolist() == [5, 6]
    assert shards.shards[0].about == {"file": "a.jsonl"}
    with pytest.raises(IndexError, match="document 4 of 4"):
        shards.read(4)


def test_learning_mask_is_stored_with_the_tokens(tmp_path: Path) -> None:
    with TokenShardWriter(tmp_path, vocab_size=10) as writer:
        writer.add([1, 2, 3], [0, 1, 1])
        writer.add([4])
        with pytest.raises(SpecError, match="document 2 has 2 tokens, but a mask of 1"):
            writer.add([5, 6], [1])
        writer.finish()  # refused documents are absent
    shards = TokenShards([tmp_path])
    assert [shards.read(i)[1].tolist() for i in range(2)] == [[False, True, True], [True]]
    assert (shards.num_tokens, shards.num_learned) == (4, 3)


@pytest.mark.parametrize("name", ["index.json", "tokens.bin", "ends.bin"])
def test_truncated_shard_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, [1, 2, 3])
    assert is_whole(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    assert not is_whole(tmp_path)
    with pytest.raises(SpecError, match="is not a complete token shard"):
        TokenShards([tmp_path])


def test_token_outside_the_vocabulary_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="document 0 has token 70000, which uint16 cannot hold"):
        write(tmp_path, [70000], vocab_size=100)
