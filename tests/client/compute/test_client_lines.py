"""Lines that break while a client speaks, and leads that refuse what it says: taken up again, in bounds."""

from __future__ import annotations

import pickle
import threading

import pytest
from scripted_lead import JOB, WAIT_S, scripted

from windlass.errors import ProtocolError
from windlass.wire.messages.calls import (
    AskCall,
    AttendCall,
    CallAgain,
    CallResults,
    CallUnknown,
    SetProfile,
)
from windlass.wire.messages.computes import CallAnswer
from windlass.wire.messages.link import Refused

CALL = f"{JOB}.1"


def run_again(line):
    """A lead that has not heard of the call, and runs it."""
    line.welcome()
    assert line.hear(AttendCall).id == CALL
    line.say(CallUnknown(id=CALL))
    line.hear(SetProfile)
    assert line.hear(AskCall).id == CALL
    body = pickle.dumps("once")
    answers = [CallAnswer(rank=0, sizes=[len(body)])]
    line.say(CallResults(id=CALL, ends=True, answers=answers), body)
    line.hear_end()


def test_a_line_that_breaks_while_a_call_is_said_again_is_replaced():
    def broken(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        line.say(CallAgain(id=CALL, has="digest-1"))
        line.socket.close()
        has_broken.set()

    has_broken = threading.Event()
    with scripted(broken, run_again) as home:
        call = home.make_call()
        call.say()
        assert has_broken.wait(WAIT_S)
        assert call.follow().value(0) == "once"


def test_a_line_that_breaks_before_a_call_is_attended_to_is_replaced():
    def broken(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)

    def broken_too(line):
        line.welcome()
        line.socket.close()
        has_broken.set()

    has_broken = threading.Event()
    with scripted(broken, broken_too, run_again) as home:
        call = home.make_call()
        call.say()
        take_talk, lines = home.take_talk, []

        def take_late(timeout_s):
            lines.append(take_talk(timeout_s))
            assert has_broken.wait(WAIT_S)
            return lines[-1]

        home.take_talk = take_late
        assert call.follow().value(0) == "once"
        assert len(lines) == 2


def test_a_lead_that_refuses_what_it_is_told_is_asked_once_more():
    def refusing(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        line.say(Refused(why="it makes no sense"))

    with scripted(refusing, run_again) as home:
        call = home.make_call()
        call.say()
        assert call.follow().value(0) == "once"


def test_a_lead_that_refuses_the_same_again_is_not_asked_for_ever():
    def refusing(line):
        line.welcome()
        line.hear(SetProfile)
        line.hear(AskCall)
        line.say(Refused(why="it makes no sense", hint="say something else"))

    def refusing_again(line):
        line.welcome()
        line.hear(AttendCall)
        line.say(CallUnknown(id=CALL))
        line.hear(SetProfile)
        line.hear(AskCall)
        line.say(Refused(why="it makes no sense", hint="say something else"))
        line.hear_end()

    with scripted(refusing, refusing_again) as home:
        call = home.make_call()
        call.say()
        with pytest.raises(ProtocolError, match="it makes no sense") as caught:
            call.follow()
        assert caught.value.hint == "say something else"
