"""Large values of calls from the client's side: in files on one machine, in parts to another one."""

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


def end(line):
    line.say(CallResults(id=CALL, ends=True, answers=[]))
    line.hear_end()


def hear_parts(line):
    """A call whose payload comes in parts, and the payload."""
    line.hear(SetProfile)
    payload, message, is_part = b"", None, True
    while is_part:
        message, body = line.hear_any()
        is_part = isinstance(message, PayloadPart)
        payload += body if is_part else b""
        assert not is_part or message.payload == CALL
    return message, payload


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_small_value_is_in_the_frame(is_remote):
    def lead(line):
        line.welcome()
        line.hear(SetProfile)
        message, body = line.hear_whole(AskCall)
        assert (pickle.loads(body), message.file, message.payload) == ("small", "", "")
        end(line)

    with scripted(lead, is_remote=is_remote) as home:
        call = home.make_call("small")
        call.send()
        assert call.follow().state == "returned"


def test_a_large_value_is_in_a_file_on_one_machine():
    def lead(line):
        line.welcome()
        line.hear(SetProfile)
        message, body = line.hear_whole(AskCall)
        assert (body, message.payload) == (b"", "")
        assert pickle.loads(Path(message.file).read_bytes()) == LARGE
        assert sum(message.sizes) == os.path.getsize(message.file)
        end(line)

    with scripted(lead) as home:
        call = home.make_call(LARGE)
        call.send()
        assert call.follow().state == "returned"


@pytest.mark.parametrize("was_taken", [False, True])
def test_a_call_that_is_said_again_has_its_file(was_taken):
    def broken(line):
        line.welcome()
        line.hear(SetProfile)
        if was_taken:
            os.unlink(line.hear(AskCall).file)

    def lead(line):
        line.welcome()
        line.hear(AttendCall)
        line.say(CallUnknown(id=CALL))
        line.hear(SetProfile)
        assert pickle.loads(Path(line.hear(AskCall).file).read_bytes()) == LARGE
        end(line)

    with scripted(broken, lead) as home:
        call = home.make_call(LARGE)
        call.send()
        assert call.follow().state == "returned"
        assert len(os.listdir(home.spill)) == 1


def test_a_large_value_goes_in_parts_to_another_machine():
    def lead(line):
        line.welcome()
        message, payload = hear_parts(line)
        assert (message.payload, message.file) == (CALL, "")
        assert pickle.loads(payload) == LARGE
        assert message.sizes == [len(payload)]
        end(line)

    with scripted(lead, is_remote=True) as home:
        call = home.make_call(LARGE)
        call.send()
        assert call.follow().state == "returned"
        assert os.listdir(home.spill) == []


def test_a_large_answer_is_read_from_its_file():
    def lead(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        body = pickle.dumps(LARGE)
        path = Path(home.spill, "answer")
        path.write_bytes(body)
        line.say(CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)], file=str(path)))
        end(line)

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == LARGE


def test_an_item_that_was_read_leaves_no_file():
    def lead(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        body = pickle.dumps(LARGE)
        path = Path(home.spill, "item")
        path.write_bytes(body)
        line.say(CallResult(id=CALL, rank=0, sizes=[len(body)], file=str(path)))
        end(line)

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert list(call.items()) == [LARGE]
        assert os.listdir(home.spill) == []


def test_a_large_answer_of_another_machine_is_put_together_from_its_parts():
    def lead(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        body = pickle.dumps(LARGE)
        half = len(body) // 2
        for key, part in (("a", body[:half]), ("b", b"of another"), ("a", body[half:])):
            line.say(PayloadPart(payload=key), part)
        line.say(CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)], payload="a"))
        end(line)

    with scripted(lead, is_remote=True) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == LARGE


def test_parts_of_a_line_that_broke_are_not_mixed_with_those_of_the_next():
    body = pickle.dumps(LARGE)

    def broken(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        line.say(PayloadPart(payload="a"), body[:1000])

    def lead(line):
        line.welcome()
        line.hear(AttendCall)
        line.say(CallAccepted(id=CALL))
        line.say(PayloadPart(payload="a"), body)
        line.say(CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)], payload="a"))
        line.say(CallEnded(id=CALL, state="returned"))
        line.hear_end()

    with scripted(broken, lead, is_remote=True) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == LARGE


def test_a_path_of_another_machine_is_not_read_here():
    def lead(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        body = pickle.dumps("in the frame")
        about = {"rank": 0, "state": "returned", "sizes": [len(body)], "file": "/etc/hostname"}
        line.say(CallResult(id=CALL, **about), body)
        end(line)

    with scripted(lead, is_remote=True) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "in the frame"
