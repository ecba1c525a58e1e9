"""Lines that break under a call, and leads that refuse what a client says: taken up again, in bounds.

A call is said once, and never again to a lead that may have heard it.
"""

from __future__ import annotations

import pickle
import threading

import pytest
from scripted_lead import CALL, WAIT_S, scripted

from windlass.errors import JobNotFound, NodeLost, ProtocolError
from windlass.wire.messages.calls import (
    AskCall,
    AttendCall,
    CallAccepted,
    CallAgain,
    CallEnded,
    CallForgotten,
    CallResult,
    CallUnknown,
    LeadEnding,
    SetProfile,
)
from windlass.wire.messages.link import Refused


def run_again(line):
    """A lead that has not heard of the call, and runs it."""
    line.welcome()
    assert line.hear(AttendCall).id == CALL
    line.say(CallUnknown(id=CALL))
    assert line.hear_call()[0].id == CALL
    line.give("once")
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
        call.send()
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
        call.send()
        take_connection, lines = home.take_connection, []

        def take_late(timeout_s):
            lines.append(take_connection(timeout_s))
            assert has_broken.wait(WAIT_S)
            return lines[-1]

        home.take_connection = take_late
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
        call.send()
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
        call.send()
        with pytest.raises(ProtocolError, match="it makes no sense") as caught:
            call.follow()
        assert caught.value.hint == "say something else"


# -- at most once --------------------------------------------------------------------------------


def test_a_call_whose_answer_was_lost_is_attended_to_and_never_said_again():
    def broken(line):
        line.welcome(num_calls=7)
        line.hear_call()

    def lead(line):
        line.welcome(num_calls=9)
        order = line.hear(AttendCall)
        assert (order.id, order.since) == (CALL, 7)  # it cannot have come before the first line
        line.say(CallAccepted(id=CALL))
        body = pickle.dumps("once")
        line.say(CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)]), body)
        line.say(CallEnded(id=CALL, state="returned"))
        line.hear_end()

    with scripted(broken, lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "once"


def test_a_call_that_its_lead_never_heard_of_is_said_to_it_again():
    def broken(line):
        line.welcome()
        line.hear(SetProfile)  # and hangs up before the call

    def lead(line):
        line.welcome()
        line.hear(AttendCall)
        line.say(CallUnknown(id=CALL))
        message, body = line.hear_call()
        assert (message.id, pickle.loads(body)) == (CALL, "what is called")
        line.give("once")
        line.hear_end()

    with scripted(broken, lead) as home:
        call = home.make_call("what is called")
        call.send()
        assert call.follow().value(0) == "once"


def test_a_call_is_never_said_to_another_lead():
    def broken(line):
        line.welcome(born="lead-1")
        line.hear_call()

    def another(line):
        line.welcome(born="lead-2")
        line.hear_end()

    with scripted(broken, another) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(NodeLost, match="node 0 was lost during the call"):
            call.follow()
        call.release(is_broken=True)


def test_a_lead_that_ends_did_not_take_the_call_which_is_for_the_next():
    def leaving(line):
        line.welcome(born="lead-1")
        line.hear_call()
        line.say(LeadEnding(id=CALL))

    def lead(line):
        line.welcome(born="lead-2")
        line.hear(AttendCall)
        line.say(CallUnknown(id=CALL))
        line.hear_call()
        line.give("by the next")
        line.hear_end()

    with scripted(leaving, lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "by the next"


def test_a_call_that_was_forgotten_is_not_repeated():
    def broken(line):
        line.welcome()
        line.hear_call()

    def lead(line):
        line.welcome()
        line.hear(AttendCall)
        line.say(CallForgotten(id=CALL))
        line.hear_end()

    with scripted(broken, lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(JobNotFound, match="outcome is no longer known") as caught:
            call.follow()
        assert not caught.value.retryable
        assert len(home.idle) == 1


def test_a_call_of_another_process_is_taken_up_and_cannot_be_said_from_here():
    def lead(line):
        line.welcome(num_calls=5)
        assert line.hear(AttendCall).since == 0  # it may be any
        line.say(CallUnknown(id=CALL))
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call(segments=[], profile=None)
        call.resume()
        with pytest.raises(NodeLost):
            call.follow()
        call.release()


def test_a_line_over_which_a_call_goes_on_being_told_is_not_used_again():
    def broken(line):
        line.welcome()
        line.hear_call()

    def lead(line):
        line.welcome()
        line.hear(AttendCall)
        line.say(CallAccepted(id=CALL))
        line.hear_end()

    with scripted(broken, lead) as home:
        call = home.make_call()
        call.send()
        call.wait_for_acceptance()
        assert home.idle == []
