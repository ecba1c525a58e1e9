"""Sender of a folder: it sends new data over a real link, round by round, until the link ends."""

from __future__ import annotations

import asyncio

import pytest
from tls_peers import join, run_with_lead, until, write_certificates

from windlass import names
from windlass.agent.link.folder_sender import FolderSender
from windlass.wire.file_sync import Sender, is_from_lead
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.messages.link import FilePiece

LOG = "attempt-0/rank-0.log"


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path / "tls")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job" / "attempt-0").mkdir(parents=True)
    return JobFolder(tmp_path / "job")


def add(folder, data):
    with folder.log(0, 0).open("ab") as file:
        file.write(data)


def send_to(files, folder, visit):
    """Run `visit(sender, pieces)`, where `pieces` collects what the sender sends to a peer."""
    pieces = []

    async def take(_link, _hello, frames):
        async for frame in frames:
            assert frame.type == FilePiece.kind
            pieces.append((frame.header["path"], frame.header["offset"], frame.body))

    async def run(listener):
        link = await join(files, listener.port)
        sender = FolderSender(link, Sender(folder, is_from_lead, has={}))
        try:
            await visit(sender, pieces)
        finally:
            sender.close()
            await link.close()
        return sender

    return run_with_lead(files, run, take)


def test_new_data_is_sent_automatically(files, folder):
    async def visit(_sender, pieces):
        add(folder, b"one\n")
        await until(lambda: len(pieces) == 1, "the first line")
        add(folder, b"two\n")
        await until(lambda: len(pieces) == 2, "the second line")
        write_atomically(folder.status, b"{}")
        await until(lambda: len(pieces) == 3, "the status")
        assert pieces == [(LOG, 0, b"one\n"), (LOG, 4, b"two\n"), (names.STATUS_FILE, 0, b"{}")]

    send_to(files, folder, visit)


def test_requested_round_sends_everything_once(files, folder):
    add(folder, b"x" * 3_500_000)

    async def visit(sender, pieces):
        await asyncio.gather(sender.round(), sender.round())
        await until(lambda: sum(len(body) for _, _, body in pieces) >= 3_500_000, "all of it")
        assert [offset for _, offset, _ in pieces] == [0, 1 << 20, 2 << 20, 3 << 20]
        assert b"".join(body for _, _, body in pieces) == b"x" * 3_500_000

    send_to(files, folder, visit)


def test_sender_ends_with_its_link(files, folder):
    async def run(listener):
        link = await join(files, listener.port)
        sender = FolderSender(link, Sender(folder, is_from_lead, has={}))
        frames = link.frames()
        assert (await frames.__anext__()).type == "welcome"
        await asyncio.wait_for(anext(frames, None), 20)  # the other side has disconnected
        add(folder, b"x" * 3_000_000)
        await asyncio.wait({sender._task}, timeout=20)
        is_done = sender._task.done()
        sender.close()
        await link.close()
        return is_done

    async def hang_up(_link, _hello, _frames):
        return

    assert run_with_lead(files, run, hang_up)


def test_close_ends_the_sender_immediately(files, folder):
    async def visit(sender, _pieces):
        sender.close()
        await asyncio.wait({sender._task}, timeout=20)
        assert sender._task.done()

    send_to(files, folder, visit)


def test_unreadable_file_is_retried(files, folder, caplog):
    folder.log(0, 0).mkdir()  # a directory cannot be read as a log

    async def visit(_sender, pieces):
        await until(lambda: "Is a directory" in caplog.text, "a warning")
        folder.log(0, 0).rmdir()
        add(folder, b"one\n")
        await until(lambda: pieces == [(LOG, 0, b"one\n")], "the line")

    send_to(files, folder, visit)


def test_unreadable_file_does_not_block_others(files, folder, caplog):
    """This matters most for the status, because a client would wait for the end forever."""
    folder.result(0, 0).mkdir()
    write_atomically(folder.result(0, 1), b"value")
    write_atomically(folder.status, b"{}")

    async def visit(sender, pieces):
        await until(lambda: len(pieces) == 2, "all that can be read")
        assert [path for path, _, _ in pieces] == ["attempt-0/rank-1.result", names.STATUS_FILE]
        await sender.round()
        await sender.round()
        assert sender.troubles == {"attempt-0/rank-0.result": "Is a directory"}
        assert caplog.text.count("Is a directory") == 1

    send_to(files, folder, visit)
