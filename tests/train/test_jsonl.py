from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from windlass.errors import SpecError
from windlass.train.data.jsonl import JsonlRows, read_kind
from windlass.train.data.loader import Loader


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_rows_of_several_files(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", '{"text": "é"}', "", '{"text": "2"}\n')
    second = write(tmp_path / "b.jsonl", '{"text": "3"}')
    rows = JsonlRows([first, second])
    assert [row["text"] for row in rows] == ["é", "2", "3"]
    assert rows[-1] == {"text": "3"}
    assert [rows.where(i) for i in range(3)] == [f"{first}:1", f"{first}:3", f"{second}:1"]
    assert rows[1:] == JsonlRows(tmp_path)[1:] == pickle.loads(pickle.dumps(rows))[1:]
    with pytest.raises(IndexError, match="row 3 of 3"):
        rows[3]


def test_rows_are_a_dataset_in_worker_processes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *(f'{{"text": "{i}"}}' for i in range(8)))
    for options in ({"num_workers": 1}, {"prefetch": 2}):
        loader = Loader(JsonlRows(path), batch=4, shuffle=False, rank=0, world_size=1, **options)
        texts = [step.micro_batches[0].data["text"] for step in loader.steps(stop=2)]
        assert texts == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "1"}', "", '{"text": ', "[1]")
    rows = JsonlRows(path)
    assert rows[0] == {"text": "1"}
    with pytest.raises(SpecError, match=r"a\.jsonl:3 is not valid JSON: Expecting value"):
        rows[1]
    with pytest.raises(SpecError, match=r"a\.jsonl:4 is a list, not an object"):
        rows[2]


def test_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "1"}\n{"text": "caf\xe9"}\n'.encode("latin-1"))
    with pytest.raises(SpecError, match=r"a\.jsonl:2 is not valid UTF-8: byte 0xe9 at position 14"):
        JsonlRows(path)[1]


def test_line_nested_too_deeply_is_named(tmp_path: Path) -> None:
    rows = JsonlRows(write(tmp_path / "a.jsonl", "[" * 100_000))
    with pytest.raises(SpecError, match=r"a\.jsonl:1 is not valid JSON"):
        rows[0]


def test_compressed_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "1"}'))
    for path in (tmp_path, tmp_path / "b.jsonl.gz"):
        with pytest.raises(SpecError, match=r"b\.jsonl\.gz is compressed\n.*gunzip --keep"):
            JsonlRows(path)
    write(tmp_path / "b.jsonl", '{"text": "1"}')  # as gunzip --keep leaves it
    assert len(JsonlRows(tmp_path)) == 1


def test_missing_files_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "")
    with pytest.raises(SpecError, match=r"file not found: .*trian\.jsonl\n.*mean train\.jsonl\?"):
        JsonlRows(tmp_path / "trian.jsonl")
    with pytest.raises(SpecError, match="whether the volume is mounted"):
        JsonlRows(tmp_path / "no" / "train.jsonl")
    with pytest.raises(SpecError, match=r"train\.jsonl has no rows"):
        JsonlRows(tmp_path / "train.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"contains no \*\.jsonl file"):
        JsonlRows(tmp_path / "empty")
    with pytest.raises(SpecError, match="no data file given"):
        JsonlRows([])


def test_row_contents() -> None:
    assert read_kind({"text": "a"}, str) == "text"
    assert read_kind({"messages": [], "text": "a"}, str) == "messages"
    with pytest.raises(SpecError, match=r"f:7 has neither a text nor messages: it has 'txt', 'id'"):
        read_kind({"txt": "a", "id": 1}, lambda: "f:7")
    with pytest.raises(SpecError, match="`text` is a int in this row"):
        read_kind({"text": 3}, lambda: "f:7")
