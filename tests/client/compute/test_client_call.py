"""The client's side of a call, against a lead that says what is written here: what it hears to its end."""

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
    CallAgain,
    CallEnded,
    CallPrinted,
    CallQueued,
    CallResult,
    CallResults,
    CallSaid,
    CallStarted,
    CallWaiting,
    EndCall,
)
from windlass.wire.messages.computes import CallAnswer, MakeObject, SyncCode
from windlass.wire.messages.jobs import Heard
from windlass.wire.messages.link import Heartbeat, Hello, Welcome
from windlass.wire.results import ErrorInfo
from windlass.wire.status import FailureKind, Verdict


def make_verdict(**fields):
    about = {"kind": FailureKind.USER_ERROR, "message": "rank 1 failed", "rank": 1, "at_s": 1.0}
    return Verdict(**{**about, "next": f"windlass logs {JOB} --rank 1", **fields})


# -- said and answered ---------------------------------------------------------------------------


def test_a_call_is_said_and_its_answers_come_back():
    def lead(line):
        line.welcome()
        message, body = line.hear_call()
        assert (message.id, message.profile, message.sizes) == (CALL, "profile-1", [len(body)])
        assert pickle.loads(body) == ("what", "is called")
        line.give("zero", {"one": 1})
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call(("what", "is called"))
        call.send()
        reply = call.follow()
        assert (reply.state, reply.verdict, reply.error()) == ("returned", None, None)
        assert [reply.value(rank) for rank in (0, 1)] == ["zero", {"one": 1}]
        assert len(home.idle) == 1  # for the next call


def test_a_profile_is_said_once_per_line():
    def one(line):
        line.welcome()
        line.hear_call()
        line.give(1)
        line.hear(AskCall)  # at once
        line.give(2)
        line.hear_end()

    def another(line):
        line.welcome()
        line.hear_call()
        line.give(3)
        line.hear_end()

    with scripted(one, another) as home:
        for value in (1, 2, 3):
            if value == 3:
                home.idle.pop().close()
            call = home.make_call()
            call.send()
            assert call.follow().value(0) == value


def test_what_is_said_of_other_calls_is_not_taken_for_this_one():
    """A line may still bring the end of a call that was let go."""

    def lead(line):
        line.welcome()
        line.hear_call()
        line.say(CallResults(id="another", ends=True, answers=[]))
        line.say(CallEnded(id="another", state="cancelled"))
        line.say(Heartbeat())
        line.give("mine")
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) == "mine"


def test_what_ranks_print_and_what_the_lead_says_reach_the_user(capsys):
    def lead(line):
        line.welcome()
        line.hear_call()
        line.say(CallPrinted(id=CALL, rank=3), b"printed\n")
        line.say(CallSaid(id=CALL, line="node 1: installing"))
        line.give(None)
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().value(0) is None
        assert home.logs == [(3, b"printed\n")]
    assert capsys.readouterr().err == "windlass: node 1: installing\n"


def test_while_a_call_waits_its_compute_is_looked_after(monkeypatch):
    check_often(monkeypatch)
    queue = "waiting for the call first-call to end, and 1 more wait before this one"
    waits_for = ["waiting for node 1", f"{queue}; windlass cancel first-call ends it"]

    def lead(line):
        line.welcome()
        line.hear_call()
        line.say(CallWaiting(id=CALL, what="waiting for node 1"))
        wait_for(lambda: home.looked_after[:1] == waits_for[:1], "it is told at once")
        line.say(CallQueued(id=CALL, ahead=2, first="first-call"))
        wait_for(lambda: home.looked_after[-1] == waits_for[1], "it is told when that lasts")
        line.say(CallStarted(id=CALL))
        line.give(None)
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert call.follow().state == "returned"
        assert set(home.looked_after) == set(waits_for)


def test_to_cancel_is_said_over_another_line():
    def lead(line):
        line.welcome()
        line.hear_call()
        lines.append(line.socket.dup())  # its end comes when it was cancelled

    def cancelled(line):
        line.hear(Hello)
        line.say(Welcome())
        order = line.hear(EndCall)
        assert (order.id, order.why, order.interrupt) == (CALL, "enough", True)
        line.say(Heard(id=CALL))
        line.socket = lines.pop()
        verdict = make_verdict(kind=FailureKind.CANCELLED, rank=None, message="enough")
        line.say(CallEnded(id=CALL, state="cancelled", verdict=verdict))
        line.socket.close()

    lines = []
    with scripted(lead, cancelled) as home:
        call = home.make_call()
        call.send()
        call.cancel("enough", interrupt=True)
        reply = call.follow()
        assert (reply.state, reply.verdict.message) == ("cancelled", "enough")


# -- waiting -------------------------------------------------------------------------------------


def test_who_does_not_want_to_wait_longer_may_wait_again():
    def lead(line):
        line.welcome()
        line.hear_call()
        assert has_waited.wait(WAIT_S)
        line.give("late")
        line.hear_end()

    has_waited = threading.Event()
    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(WaitTimeout, match="is not done yet"):
            call.follow(wait_s=0.02)
        has_waited.set()
        assert call.follow().value(0) == "late"


def test_a_detached_call_is_let_go_when_it_was_accepted():
    def lead(line):
        line.welcome()
        line.hear_call()
        line.say(CallAccepted(id="another"))
        line.say(CallAgain(id=CALL, has="digest-1"))
        line.hear(AskCall)
        line.say(CallAccepted(id=CALL))
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        call.wait_for_acceptance()
        assert len(home.idle) == 1


# -- what the lead lacks -------------------------------------------------------------------------


def test_code_is_said_before_the_call_and_again_from_where_the_lead_is():
    asked = []

    def make_sync(has):
        asked.append(has)
        return SyncCode(project="p", base=has, digest="digest-2"), f"from {has}".encode()

    def lead(line):
        line.welcome()
        order, body = line.hear_whole(SyncCode)
        assert (order.base, body) == ("digest-0", b"from digest-0")
        line.hear_call()
        line.say(CallAgain(id=CALL, has="digest-1"))
        order, body = line.hear_whole(SyncCode)
        assert (order.base, body) == ("digest-1", b"from digest-1")
        assert line.hear(AskCall).id == CALL
        line.give("done")
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call(make_sync=make_sync, has="digest-0")
        call.send()
        assert call.follow().value(0) == "done"
    assert asked == ["digest-0", "digest-1"]


def test_what_makes_an_object_is_said_where_it_is_asked_for(capsys):
    def lead(line):
        line.welcome()
        line.hear_call()
        line.say(CallAgain(id=CALL, make=True))
        order, body = line.hear_whole(MakeObject)
        assert (order.sizes, body) == ([5, 4], b"classargs")
        line.hear(AskCall)
        line.give("done")
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call(constructor=[b"class", b"args"], was_made=True)
        call.send()
        assert call.follow().value(0) == "done"
    assert (
        "work: the processes that held the object ended; it is created again"
        in capsys.readouterr().err
    )


def test_an_object_that_nobody_here_can_make_is_lost():
    def lead(line):
        line.welcome()
        line.hear_call()
        line.say(CallAgain(id=CALL, make=True))
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(NodeLost, match="the object is gone"):
            call.follow()
        call.release(is_broken=True)


# -- streams -------------------------------------------------------------------------------------


def test_what_is_yielded_comes_in_order():
    def lead(line):
        line.welcome()
        line.hear_call()
        for number in range(3):
            body = pickle.dumps(number)
            line.say(CallResult(id=CALL, rank=0, sizes=[len(body)]), body)
        line.give(None)
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        assert list(call.items()) == [0, 1, 2]
        assert call.reply.state == "returned"


# -- failures ------------------------------------------------------------------------------------


def fail(line, error, *, verdict=None, **about):
    """Rank 1 raises, and the call has failed."""
    body = pickle.dumps(error)
    info = ErrorInfo(type=f"builtins.{type(error).__name__}", message=str(error))
    told = {"rank": 1, "state": "raised", "sizes": [len(body)], "error": info, **about}
    line.say(CallResults(id=CALL, ends=False, answers=[CallAnswer(**told)]), body)
    line.say(CallEnded(id=CALL, state="failed", verdict=verdict or make_verdict()))
    line.hear_end()


def follow_failure(error):
    def lead(line):
        line.welcome()
        line.hear_call()
        fail(line, error)

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        return call.follow()


def test_what_a_rank_raised_is_raised_here_as_itself():
    error = follow_failure(KeyError("missing")).error()
    assert type(error) is builtins.KeyError
    assert error.args == ("missing",)


def test_a_rank_that_left_does_not_end_this_process():
    error = follow_failure(SystemExit(3)).error()
    assert isinstance(error, RankFailed)


def test_what_to_do_next_is_said_of_the_call():
    verdict = follow_failure(ValueError("no")).verdict
    assert verdict.next == f"windlass logs {CALL} --rank 1"


def test_a_value_that_cannot_be_rebuilt_here_is_told_so():
    def lead(line):
        line.welcome()
        line.hear_call()
        answers = [CallAnswer(rank=0, sizes=[7])]
        line.say(CallResults(id=CALL, ends=True, answers=answers), b"garbage")
        line.hear_end()

    with scripted(lead) as home:
        call = home.make_call()
        call.send()
        with pytest.raises(RemoteError, match="rank 0 returned a value that cannot be loaded here"):
            call.follow().value(0)
