"""Large values of calls on the client's side: in files on the same machine, in parts to another one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from scripted_lead import CALL, scripted

from windlass.wire.messages.calls import (
    AskCall,
    AttendCall,
    CallAccepted,
    CallEnded,
    CallResult,
    CallResults,
    CallUnknown,
    SetProfile,
)
from windlass.wire.messages.computes import PayloadPart
from windlass.wire.payloads import SPILL_BYTES

LARGE = bytes(range(256)) * (SPILL_BYTES // 256 + 1)


def end(connection):
    connection.say(CallResults(id=CALL, ends=True, answers=[]))
    connection.hear_end()


def hear_parts(connection):
    """Receive a call whose payload comes in parts. Return it and the payload."""
    connection.hear(SetProfile)
    payload, message, is_part = b"", None, True
    while is_part:
        message, body = connection.hear_any()
        is_part = isinstance(message, PayloadPart)
        payload += body if is_part else b""
        assert not is_part or message.payload == CALL
    return message, payload


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_small_value_is_in_the_frame(is_remote):
    def lead(connection):
        connection.welcome()
        connection.hear(SetProfile)
        message, body = connection.hear_whole(AskCall)
        assert (pickle.loads(body), message.file, message.payload) == ("small", "", "")
        end(connection)

    with scripted(lead, is_remote=is_remote) as home:
        call = home.make_call("small")
        call.send()
        assert call.follow().state == "returned"


def test_a_large_value_is_in_a_file_on_one_machine():
    def lead(connection):
        connection.welcome()
        connection.hear(SetProfile)
        message, body = connection.hear_whole(AskCall)
        assert (body, message.payload) == (b"", "")
        assert pickle.loads(Path(message.file).read_bytes()) == LARGE
        assert sum(message.sizes) == os.path.getsize(message.file)
        end(connection)

    with scripted(lead) as home:
        call = home.make_call(LARGE)
        call.send()
        assert call.follow().state == "returned"


@pytest.mark.parametrize("was_taken", [False, True])
def test_repeated_call_has_its_file(was_taken):
    def break_connection(connection):
        connection.welcome()
        connection.hear(SetProfile)
        if was_taken:
            os.unlink(connection.hear(AskCall).file)

    def lead(connection):
        connection.welcome()
        connection.hear(AttendCall)
        connection.say(CallUnknown(id=CALL))
        connection.hear(SetProfile)
        assert pickle.loads(Path(connection.hear(AskCall).file).read_bytes()) == LARGE
        end(connection)

    with scripted(break_connection, lead) as home:
        call = home.make_call(LARGE)
        call.send()
        assert call.follow().state == "returned"
        assert len(os.listdir(home.spill)) == 1


def test_a_large_value_goes_in_parts_to_another_machine():
    def lead(connection):
        connection.welcome()
        message, payload = hear_parts(connection)
        assert (message.payload, message.file) == (CALL, "")
        assert pickle.loads(payload) == LARGE
        assert message.sizes == [len(payload)]
        end(connection)

    with scripted(lead, is_remote=True) as home:
        call = home.make_call(LARGE)
        call.send()
        assert call.follow().state == "returned"
        assert os.listdir(home.spill) == []


def test_a_large_answer_is_read_from_its_file():
    def lead(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        body = pickle.dumps(LARGE)
        path = Path(home.spill, "answer")
        path.write_bytes(body)
        connection.say(
            CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)], file=str(path))
        )
        end(connection)

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == LARGE


def test_item_that_was_read_leaves_no_file():
    def lead(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        body = pickle.dumps(LARGE)
        path = Path(home.spill, "item")
        path.write_bytes(body)
        connection.say(CallResult(id=CALL, rank=0, sizes=[len(body)], file=str(path)))
        end(connection)

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert list(call.items()) == [LARGE]
        assert os.listdir(home.spill) == []


def test_large_answer_of_another_machine_is_joined_from_its_parts():
    def lead(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        body = pickle.dumps(LARGE)
        half = len(body) // 2
        for key, part in (("a", body[:half]), ("b", b"of another"), ("a", body[half:])):
            connection.say(PayloadPart(payload=key), part)
        connection.say(
            CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)], payload="a")
        )
        end(connection)

    with scripted(lead, is_remote=True) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == LARGE


def test_parts_of_two_connections_are_not_mixed():
    body = pickle.dumps(LARGE)

    def break_connection(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        connection.say(PayloadPart(payload="a"), body[:1000])

    def lead(connection):
        connection.welcome()
        connection.hear(AttendCall)
        connection.say(CallAccepted(id=CALL))
        connection.say(PayloadPart(payload="a"), body)
        connection.say(
            CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)], payload="a")
        )
        connection.say(CallEnded(id=CALL, state="returned"))
        connection.hear_end()

    with scripted(break_connection, lead, is_remote=True) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == LARGE


def test_a_path_of_another_machine_is_not_read_here():
    def lead(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        body = pickle.dumps("in the frame")
        about = {"rank": 0, "state": "returned", "sizes": [len(body)], "file": "/etc/hostname"}
        connection.say(CallResult(id=CALL, **about), body)
        end(connection)

    with scripted(lead, is_remote=True) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "in the frame"
