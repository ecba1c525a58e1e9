"""Connections that break during a call, and leads that refuse messages. Both are retried, within limits.

A client sends a call once. It never repeats the call to a lead that may have received it.
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
    CallEnded,
    CallForgotten,
    CallResult,
    CallUnknown,
    LeadEnding,
    RepeatCall,
    SetProfile,
)
from windlass.wire.messages.link import Refused


def run_again(connection):
    """Act as a lead that has not received the call, and run it."""
    connection.welcome()
    assert connection.hear(AttendCall).id == CALL
    connection.say(CallUnknown(id=CALL))
    assert connection.hear_call()[0].id == CALL
    connection.give("once")
    connection.hear_end()


def test_connection_that_breaks_while_repeating_a_call_is_replaced():
    def break_connection(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        connection.say(RepeatCall(id=CALL, has="digest-1"))
        connection.socket.close()
        has_broken.set()

    has_broken = threading.Event()
    with scripted(break_connection, run_again) as home:
        call = home.make_call()
        call.send()
        assert has_broken.wait(WAIT_S)
        assert call.follow().value(0) == "once"


def test_connection_that_breaks_before_attending_is_replaced():
    def break_connection(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)

    def break_again(connection):
        connection.welcome()
        connection.socket.close()
        has_broken.set()

    has_broken = threading.Event()
    with scripted(break_connection, break_again, run_again) as home:
        call = home.make_call()
        call.send()
        take_connection, connections = home.take_connection, []

        def take_connection_late(timeout_s):
            connections.append(take_connection(timeout_s))
            assert has_broken.wait(WAIT_S)
            return connections[-1]

        home.take_connection = take_connection_late
        assert call.follow().value(0) == "once"
        assert len(connections) == 2


def test_refused_message_is_retried_once():
    def refuse(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        connection.say(Refused(why="it makes no sense"))

    with scripted(refuse, run_again) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "once"


def test_message_refused_twice_is_not_retried():
    def refuse(connection):
        connection.welcome()
        connection.hear(SetProfile)
        connection.hear(AskCall)
        connection.say(Refused(why="it makes no sense", hint="say something else"))

    def refuse_again(connection):
        connection.welcome()
        connection.hear(AttendCall)
        connection.say(CallUnknown(id=CALL))
        connection.hear(SetProfile)
        connection.hear(AskCall)
        connection.say(Refused(why="it makes no sense", hint="say something else"))
        connection.hear_end()

    with scripted(refuse, refuse_again) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(ProtocolError, match="it makes no sense") as caught:
            call.follow()
        assert caught.value.hint == "say something else"


# -- at most once --------------------------------------------------------------------------------


def test_call_whose_answer_was_lost_is_attended_and_never_repeated():
    def break_connection(connection):
        connection.welcome(num_calls=7)
        connection.hear_call()

    def lead(connection):
        connection.welcome(num_calls=9)
        order = connection.hear(AttendCall)
        # it cannot have arrived before the first connection
        assert (order.id, order.since) == (CALL, 7)
        connection.say(CallAccepted(id=CALL))
        body = pickle.dumps("once")
        connection.say(CallResult(id=CALL, rank=0, state="returned", sizes=[len(body)]), body)
        connection.say(CallEnded(id=CALL, state="returned"))
        connection.hear_end()

    with scripted(break_connection, lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "once"


def test_call_unknown_to_its_lead_is_repeated():
    def break_connection(connection):
        connection.welcome()
        connection.hear(SetProfile)  # then disconnects before the call

    def lead(connection):
        connection.welcome()
        connection.hear(AttendCall)
        connection.say(CallUnknown(id=CALL))
        message, body = connection.hear_call()
        assert (message.id, pickle.loads(body)) == (CALL, "what is called")
        connection.give("once")
        connection.hear_end()

    with scripted(break_connection, lead) as home:
        call = home.make_call("what is called")
        call.send()
        assert call.follow().value(0) == "once"


def test_call_is_never_repeated_to_another_lead():
    def break_connection(connection):
        connection.welcome(born="lead-1")
        connection.hear_call()

    def another(connection):
        connection.welcome(born="lead-2")
        connection.hear_end()

    with scripted(break_connection, another) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(NodeLost, match="was lost together with node 0"):
            call.follow()
        call.release(is_broken=True)


def test_call_not_accepted_by_an_ending_lead_goes_to_the_next():
    def leave(connection):
        connection.welcome(born="lead-1")
        connection.hear_call()
        connection.say(LeadEnding(id=CALL))

    def lead(connection):
        connection.welcome(born="lead-2")
        connection.hear(AttendCall)
        connection.say(CallUnknown(id=CALL))
        connection.hear_call()
        connection.give("by the next")
        connection.hear_end()

    with scripted(leave, lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "by the next"


def test_forgotten_call_is_not_repeated():
    def break_connection(connection):
        connection.welcome()
        connection.hear_call()

    def lead(connection):
        connection.welcome()
        connection.hear(AttendCall)
        connection.say(CallForgotten(id=CALL))
        connection.hear_end()

    with scripted(break_connection, lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(JobNotFound, match="outcome is no longer known") as caught:
            call.follow()
        assert not caught.value.retryable
        assert len(home.idle) == 1


def test_call_of_another_process_is_followed_but_not_repeated():
    def lead(connection):
        connection.welcome(num_calls=5)
        assert connection.hear(AttendCall).since == 0  # any connection may have carried it
        connection.say(CallUnknown(id=CALL))
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call(segments=[], profile=None)
        call.resume()
        with pytest.raises(NodeLost):
            call.follow()
        call.release()


def test_connection_of_an_unfinished_call_is_not_reused():
    def break_connection(connection):
        connection.welcome()
        connection.hear_call()

    def lead(connection):
        connection.welcome()
        connection.hear(AttendCall)
        connection.say(CallAccepted(id=CALL))
        connection.hear_end()

    with scripted(break_connection, lead) as home:
        call = home.make_call()
        call.send()
        call.wait_for_acceptance()
        assert home.idle == []
