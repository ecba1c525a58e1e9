"""Client side of a call against a scripted lead, from sending to the end."""

from __future__ import annotations

import builtins
import pickle
import threading

import pytest
from scripted_lead import CALL, JOB, WAIT_S, check_often, scripted
from waits import wait_for

from windlass.errors import NodeLost, RankFailed, RemoteError, WaitTimeout
from windlass.wire.messages.calls import (
    AskCall,
    CallAccepted,
    CallEnded,
    CallNotice,
    CallPrinted,
    CallQueued,
    CallResult,
    CallResults,
    CallStarted,
    CallWaiting,
    EndCall,
    RepeatCall,
)
from windlass.wire.messages.computes import CallAnswer, MakeObject, SyncCode
from windlass.wire.messages.jobs import Acknowledged
from windlass.wire.messages.link import Heartbeat, Hello, Welcome
from windlass.wire.results import ErrorInfo
from windlass.wire.status import FailureKind, Verdict


def make_verdict(**fields):
    about = {"kind": FailureKind.USER_ERROR, "message": "rank 1 failed", "rank": 1, "at_s": 1.0}
    return Verdict(**{**about, "next": f"windlass logs {JOB} --rank 1", **fields})


# -- sent and answered ---------------------------------------------------------------------------


def test_call_is_sent_and_answered():
    def lead(connection):
        connection.welcome()
        message, body = connection.hear_call()
        assert (message.id, message.profile, message.sizes) == (CALL, "profile-1", [len(body)])
        assert pickle.loads(body) == ("what", "is called")
        connection.give("zero", {"one": 1})
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call(("what", "is called"))
        call.send()
        reply = call.follow()
        assert (reply.state, reply.verdict, reply.error()) == ("returned", None, None)
        assert [reply.value(rank) for rank in (0, 1)] == ["zero", {"one": 1}]
        assert len(home.idle) == 1  # connection of the next call


def test_profile_is_sent_once_per_connection():
    def one(connection):
        connection.welcome()
        connection.hear_call()
        connection.give(1)
        connection.hear(AskCall)  # without another profile
        connection.give(2)
        connection.hear_end()

    def another(connection):
        connection.welcome()
        connection.hear_call()
        connection.give(3)
        connection.hear_end()

    with scripted(one, another) as home:
        for value in (1, 2, 3):
            if value == 3:
                home.idle.pop().close()
            call = home.make_call()
            call.send()
            assert call.follow().value(0) == value


def test_messages_about_other_calls_are_ignored():
    """A connection may still deliver the end of an abandoned call."""

    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connection.say(CallResults(id="another", ends=True, answers=[]))
        connection.say(CallEnded(id="another", state="cancelled"))
        connection.say(Heartbeat())
        connection.give("mine")
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "mine"


def test_output_of_ranks_and_of_the_lead_reaches_the_user(capsys):
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connection.say(CallPrinted(id=CALL, rank=3), b"printed\n")
        connection.say(CallNotice(id=CALL, line="node 1: installing"))
        connection.give(None)
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) is None
        assert home.logs == [(3, b"printed\n")]
    assert capsys.readouterr().err == "windlass: node 1: installing\n"


def test_compute_is_watched_while_a_call_waits(monkeypatch):
    check_often(monkeypatch)
    queue = "waiting for the call first-call to end, and 1 more wait before this one"
    waits_for = ["waiting for node 1", f"{queue}; `windlass cancel first-call` stops it"]

    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connection.say(CallWaiting(id=CALL, what="waiting for node 1"))
        wait_for(
            lambda: home.looked_after[:1] == waits_for[:1], "the reason is passed on immediately"
        )
        connection.say(CallQueued(id=CALL, ahead=2, first="first-call"))
        wait_for(
            lambda: home.looked_after[-1] == waits_for[1],
            "the reason is passed on when the wait continues",
        )
        connection.say(CallStarted(id=CALL))
        connection.give(None)
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().state == "returned"
        assert set(home.looked_after) == set(waits_for)


def test_cancel_uses_another_connection():
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connections.append(connection.socket.dup())  # the end is sent after the cancellation

    def cancelled(connection):
        connection.hear(Hello)
        connection.say(Welcome())
        order = connection.hear(EndCall)
        assert (order.id, order.why, order.interrupt) == (CALL, "enough", True)
        connection.say(Acknowledged(id=CALL))
        connection.socket = connections.pop()
        verdict = make_verdict(kind=FailureKind.CANCELLED, rank=None, message="enough")
        connection.say(CallEnded(id=CALL, state="cancelled", verdict=verdict))
        connection.socket.close()

    connections = []
    with scripted(lead, cancelled) as home:
        call = home.make_call()
        call.send()
        call.cancel("enough", interrupt=True)
        reply = call.follow()
        assert (reply.state, reply.verdict.message) == ("cancelled", "enough")


# -- waiting -------------------------------------------------------------------------------------


def test_wait_that_timed_out_can_be_repeated():
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        assert has_waited.wait(WAIT_S)
        connection.give("late")
        connection.hear_end()

    has_waited = threading.Event()
    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(WaitTimeout, match="is not done yet"):
            call.follow(wait_s=0.02)
        has_waited.set()
        assert call.follow().value(0) == "late"


def test_detached_call_is_released_after_acceptance():
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connection.say(CallAccepted(id="another"))
        connection.say(RepeatCall(id=CALL, has="digest-1"))
        connection.hear(AskCall)
        connection.say(CallAccepted(id=CALL))
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        call.wait_for_acceptance()
        assert len(home.idle) == 1


# -- missing code and objects --------------------------------------------------------------------


def test_code_is_sent_before_the_call_and_again_from_the_leads_version():
    asked = []

    def make_sync(has):
        asked.append(has)
        return SyncCode(project="p", base=has, digest="digest-2"), f"from {has}".encode()

    def lead(connection):
        connection.welcome()
        order, body = connection.hear_whole(SyncCode)
        assert (order.base, body) == ("digest-0", b"from digest-0")
        connection.hear_call()
        connection.say(RepeatCall(id=CALL, has="digest-1"))
        order, body = connection.hear_whole(SyncCode)
        assert (order.base, body) == ("digest-1", b"from digest-1")
        assert connection.hear(AskCall).id == CALL
        connection.give("done")
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call(make_sync=make_sync, has="digest-0")
        call.send()
        assert call.follow().value(0) == "done"
    assert asked == ["digest-0", "digest-1"]


def test_object_is_sent_on_request(capsys):
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connection.say(RepeatCall(id=CALL, make=True))
        order, body = connection.hear_whole(MakeObject)
        assert (order.sizes, body) == ([5, 4], b"classargs")
        connection.hear(AskCall)
        connection.give("done")
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call(constructor=[b"class", b"args"], was_made=True)
        call.send()
        assert call.follow().value(0) == "done"
    assert (
        "work: the processes with the object have ended; creating it again"
        in capsys.readouterr().err
    )


def test_object_that_cannot_be_created_is_lost():
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        connection.say(RepeatCall(id=CALL, make=True))
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(NodeLost, match="the object was lost"):
            call.follow()
        call.release(is_broken=True)


# -- streams -------------------------------------------------------------------------------------


def test_items_arrive_in_order():
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        for number in range(3):
            body = pickle.dumps(number)
            connection.say(CallResult(id=CALL, rank=0, sizes=[len(body)]), body)
        connection.give(None)
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert list(call.items()) == [0, 1, 2]
        assert call.reply.state == "returned"


# -- failures ------------------------------------------------------------------------------------


def fail(connection, error, *, verdict=None, **about):
    """Report that rank 1 raised and the call failed."""
    body = pickle.dumps(error)
    info = ErrorInfo(type=f"builtins.{type(error).__name__}", message=str(error))
    outcome = {"rank": 1, "state": "raised", "sizes": [len(body)], "error": info, **about}
    connection.say(CallResults(id=CALL, ends=False, answers=[CallAnswer(**outcome)]), body)
    connection.say(CallEnded(id=CALL, state="failed", verdict=verdict or make_verdict()))
    connection.hear_end()


def follow_failure(error):
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        fail(connection, error)

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        return call.follow()


def test_exception_of_a_rank_is_raised_with_its_type():
    error = follow_failure(KeyError("missing")).error()
    assert type(error) is builtins.KeyError
    assert error.args == ("missing",)


def test_exit_of_a_rank_does_not_exit_this_process():
    error = follow_failure(SystemExit(3)).error()
    assert isinstance(error, RankFailed)


def test_hint_is_about_the_call():
    verdict = follow_failure(ValueError("no")).verdict
    assert verdict.next == f"windlass logs {CALL} --rank 1"


def test_value_that_cannot_be_rebuilt_is_reported():
    def lead(connection):
        connection.welcome()
        connection.hear_call()
        answers = [CallAnswer(rank=0, sizes=[7])]
        connection.say(CallResults(id=CALL, ends=True, answers=answers), b"garbage")
        connection.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(RemoteError, match="rank 0 returned a value that cannot be loaded here"):
            call.follow().value(0)
