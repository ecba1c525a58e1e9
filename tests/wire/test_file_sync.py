"""Copies of a folder. Nothing is lost, repeated, partial or outside the agreed files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import names
from windlass.errors import ProtocolError
from windlass.wire import file_sync
from windlass.wire.file_sync import (
    Piece,
    Receiver,
    Sender,
    find_files,
    is_from_lead,
    is_from_ranks,
    is_input,
    measure_files,
    read_piece,
)
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.messages.link import FilePiece

LOG, RESULT = "attempt-0/rank-0.log", "attempt-0/rank-0.result"


@pytest.fixture
def sides(tmp_path):
    """Return a folder to copy from and one to copy to."""
    return make_sides(tmp_path)


def make_sides(path):
    found = JobFolder(path / "from"), JobFolder(path / "to")
    for folder in found:
        folder.path.mkdir()
    return found


def put(folder, path, data):
    (folder.path / path).parent.mkdir(exist_ok=True)
    write_atomically(folder.path / path, data)


def add(folder, path, data):
    (folder.path / path).parent.mkdir(exist_ok=True)
    with (folder.path / path).open("ab") as file:
        file.write(data)


def connect(source, target, wants=is_from_lead):
    """Open a new connection, on which the receiver first lists its files."""
    sender = Sender(source, wants, has=measure_files(target, wants))
    return sender, Receiver(target, wants)


def copy(source, target, wants=is_from_lead):
    sender, receiver = connect(source, target, wants)
    pieces = list(sender.pieces())
    for piece in pieces:
        receiver.take(read_piece(piece.message, piece.body))
    return pieces


def read_all(folder):
    return {path: (folder.path / path).read_bytes() for path in find_files(folder)}


# -- complete copies -----------------------------------------------------------------------------


def test_a_folder_is_copied(sides):
    source, target = sides
    files = {
        names.STATUS_FILE: b"{}",
        LOG: b"one\ntwo\n",
        RESULT: b"value",
        "attempt-10/rank-12.error.json": b"{}",
        "attempt-10/world.json": b"[]",
    }
    for path, data in files.items():
        put(source, path, data)
    copy(source, target)
    assert read_all(target) == files
    assert copy(source, target)[:-1] == []  # only the status is sent again


def test_unwanted_files_are_not_sent(sides):
    source, target = sides
    for path in (names.STATUS_FILE, names.PAYLOAD_FILE, names.BUNDLE_FILE, LOG, "plan.json"):
        put(source, path, b"x")
    assert [piece.path for piece in copy(source, target, is_input)] == [
        names.BUNDLE_FILE,
        names.PAYLOAD_FILE,
    ]
    assert [piece.path for piece in copy(source, target, is_from_ranks)] == [LOG]


def test_second_round_sends_only_new_data(sides):
    source, target = sides
    put(source, names.STATUS_FILE, b"first")
    add(source, LOG, b"one\n")
    sender, _ = connect(source, target)
    assert [piece.path for piece in sender.pieces()] == [LOG, names.STATUS_FILE]
    assert list(sender.pieces()) == []
    add(source, LOG, b"two\n")
    assert list(sender.pieces()) == [Piece(path=LOG, offset=4, body=b"two\n")]
    put(source, names.STATUS_FILE, b"other")  # has the same length
    assert [(piece.path, piece.body) for piece in sender.pieces()] == [
        (names.STATUS_FILE, b"other")
    ]


def test_a_file_that_is_replaced_is_sent_again(sides):
    source, target = sides
    put(source, RESULT, b"early")
    sender, receiver = connect(source, target)
    for data in (b"early", b"later"):
        put(source, RESULT, data)
        for piece in sender.pieces():
            assert receiver.take(piece)
        assert read_all(target) == {RESULT: data}


def test_empty_file_is_sent(sides):
    source, target = sides
    put(source, RESULT, b"")
    copy(source, target)
    assert read_all(target) == {RESULT: b""}


# -- logs ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    written=st.lists(st.binary(max_size=40), max_size=12),
    cuts=st.lists(st.integers(min_value=0, max_value=8), max_size=12),
    piece_bytes=st.integers(min_value=1, max_value=16),
)
def test_logs_continue_where_they_were_cut(tmp_path_factory, written, cuts, piece_bytes):
    """Writes may continue meanwhile, and the connection may break after any piece."""
    source, target = make_sides(tmp_path_factory.mktemp("logs"))
    breaks = iter(cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sync, "PIECE_BYTES", piece_bytes)
        sender, receiver = connect(source, target)
        for data in written:
            add(source, LOG, data)
            num_left = next(breaks, None)
            for number, piece in enumerate(sender.pieces()):
                if number == num_left:
                    sender, receiver = connect(source, target)
                    break
                receiver.take(read_piece(piece.message, piece.body))
        copy(source, target)
    assert read_all(target).get(LOG, b"") == b"".join(written)


@settings(deadline=None)
@given(
    log=st.binary(min_size=1, max_size=60),
    pieces=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=10),
)
def test_pieces_that_overlap_are_not_written_twice(tmp_path_factory, log, pieces):
    _, target = make_sides(tmp_path_factory.mktemp("logs"))
    receiver = Receiver(target, is_from_ranks)
    known = 0
    for start, length in pieces:
        body = log[start : start + length]
        if start <= known:
            receiver.take(Piece(path=LOG, offset=start, body=body))
            known = max(known, start + len(body))
        else:
            with pytest.raises(
                ProtocolError, match=f"starts at {start}, but the file ends at {known}"
            ):
                receiver.take(Piece(path=LOG, offset=start, body=body))
    assert read_all(target).get(LOG, b"") == log[:known]


# -- complete files ------------------------------------------------------------------------------


def test_large_file_appears_only_when_complete(sides, monkeypatch):
    monkeypatch.setattr(file_sync, "PIECE_BYTES", 4)
    source, target = sides
    put(source, RESULT, b"0123456789")
    sender, receiver = connect(source, target)
    seen = []
    for piece in sender.pieces():
        is_whole = receiver.take(read_piece(piece.message, piece.body))
        seen.append((is_whole, (target.path / RESULT).exists()))
    assert seen == [(False, False), (False, False), (True, True)]
    assert read_all(target) == {RESULT: b"0123456789"}
    assert list((target.path / "attempt-0").iterdir()) == [target.result(0, 0)]


def test_interrupted_file_is_sent_again(sides, monkeypatch):
    monkeypatch.setattr(file_sync, "PIECE_BYTES", 4)
    source, target = sides
    put(source, RESULT, b"0123456789")
    sender, receiver = connect(source, target)
    receiver.take(next(sender.pieces()))
    assert read_all(target) == {}
    put(source, RESULT, b"another one")
    copy(source, target)
    assert read_all(target) == {RESULT: b"another one"}


def test_gap_in_a_file_is_refused(sides):
    receiver = Receiver(sides[1], is_from_ranks)
    receiver.take(Piece(path=RESULT, offset=0, body=b"01", total_bytes=6))
    with pytest.raises(ProtocolError, match="starts at 4, but the file ends at 2"):
        receiver.take(Piece(path=RESULT, offset=4, body=b"45", total_bytes=6))
    assert not sides[1].result(0, 0).exists()


@pytest.mark.parametrize(("path", "total_bytes"), [(LOG, 3), (RESULT, None)])
def test_logs_grow_and_other_files_do_not(sides, path, total_bytes):
    """A replaced log would lose lines, and a growing result would be read partially."""
    put(sides[1], path, b"here")
    piece = Piece(path=path, offset=0, body=b"new", total_bytes=total_bytes)
    with pytest.raises(ProtocolError, match="only logs are sent without a total size"):
        Receiver(sides[1], is_from_ranks).take(piece)
    assert read_all(sides[1]) == {path: b"here"}


# -- the status ----------------------------------------------------------------------------------


def test_status_is_read_first_and_sent_last(sides):
    """All data that a status mentions is sent before it. A later status waits for the next round."""
    source, target = sides
    put(source, names.STATUS_FILE, b"running")
    add(source, LOG, b"one\n")
    sender, _ = connect(source, target)
    pieces = sender.pieces()
    first = next(pieces)
    put(source, RESULT, b"value")  # too late for this round
    put(source, names.STATUS_FILE, b"succeeded")
    sent = [(piece.path, piece.body) for piece in (first, *pieces)]
    assert sent == [(LOG, b"one\n"), (names.STATUS_FILE, b"running")]
    assert [(piece.path, piece.body) for piece in sender.pieces()] == [
        (RESULT, b"value"),
        (names.STATUS_FILE, b"succeeded"),
    ]


def test_status_is_sent_even_if_the_receiver_has_one(sides):
    """A status of equal length may have other contents."""
    source, target = sides
    put(source, names.STATUS_FILE, b"new")
    put(target, names.STATUS_FILE, b"old")
    copy(source, target)
    assert read_all(target) == {names.STATUS_FILE: b"new"}


# -- allowed files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/etc/passwd",
        "attempt-0/../../outside",
        "attempt-0/rank-0.log/../../x",
        "attempt-0/rank-0.log\n",
        "attempt-0//rank-0.log",
        "attempt-0/rank-0.log.part",
        "attempt-0/.rank-0.result.part",
        "attempt-0/rank-.log",
        "attempt--1/rank-0.log",
        "attempt-٣/rank-0.log",
        "attempt-0/rank-٣.result",
        "attempt-0/rank-0.exe",
        "attempt-0/sub/rank-0.log",
        "plan.json",
        "code/train.py",
        "lead.lock",
        "",
    ],
)
@pytest.mark.parametrize("takes", [is_from_ranks, is_from_lead, is_input])
def test_other_files_are_refused(sides, path, takes):
    _, target = sides
    with pytest.raises(ProtocolError, match="is not accepted here"):
        Receiver(target, takes).take(Piece(path=path, offset=0, body=b"x", total_bytes=1))
    assert sorted(target.path.parent.rglob("*")) == sorted(side.path for side in sides)


@pytest.mark.parametrize(
    ("path", "takers"),
    [
        (LOG, {is_from_ranks, is_from_lead}),
        (RESULT, {is_from_ranks, is_from_lead}),
        (names.STATUS_FILE, {is_from_lead}),
        (names.PAYLOAD_FILE, {is_input}),
        (names.BUNDLE_FILE, {is_input}),
    ],
)
def test_each_side_accepts_only_its_files(path, takers):
    assert {takes for takes in (is_from_ranks, is_from_lead, is_input) if takes(path)} == takers


@pytest.mark.parametrize(
    "header",
    [
        {"offset": 0},
        {"path": 3, "offset": 0},
        {"path": LOG},
        {"path": LOG, "offset": "0"},
        {"path": LOG, "offset": -1},
        {"path": LOG, "offset": 0, "total_bytes": "5"},
        {"path": LOG, "offset": 0, "total_bytes": 3},
        {"path": LOG, "offset": 2, "total_bytes": 5},
        {"path": LOG, "offset": 0, "total_bytes": -1},
    ],
)
def test_malformed_pieces_are_refused(header):
    with pytest.raises(ProtocolError, match="piece"):
        read_piece(FilePiece.read(header), b"four")


def test_deleted_folder_is_not_an_error(sides):
    source, target = sides
    assert list(Sender(source, is_from_lead, has={}).pieces()) == []
    add(source, LOG, b"one\n")
    pieces = Sender(source, is_from_lead, has={}).pieces()
    source.log(0, 0).unlink()
    assert list(pieces) == []
    assert measure_files(target, is_from_lead) == {}
