"""The ledger of calls: what ended lately stays, within bounds."""

from __future__ import annotations

import asyncio

import pytest

from windlass.agent.lead.calls import call_queue as module
from windlass.agent.lead.calls.call_queue import CallHistory
from windlass.agent.lead.calls.call_state import Call, RankAnswer
from windlass.wire.messages.calls import CallProfile
from windlass.wire.messages.computes import CallAnswer
from windlass.wire.states import CallState


@pytest.fixture(autouse=True)
def loop():
    """Calls have events, which older Pythons tie to a loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def make_call(name):
    return Call(name, CallProfile(name=name), [], b"", "")


def end(history, name, size=0, file=""):
    call = make_call(name)
    history.add(call)
    call.answers[0] = RankAnswer(CallAnswer(sizes=[size], file=file))
    call.state = CallState.RETURNED
    history.settle(call)
    return call


def test_calls_are_found_again():
    history = CallHistory()
    call = end(history, "a")
    assert history["a"] is call
    assert "a" in history
    assert history.get("b") is None


def test_the_oldest_go_when_there_are_many():
    history = CallHistory()
    for number in range(module.KEPT_CALLS + 5):
        end(history, str(number))
    assert len(history.recent()) == module.KEPT_CALLS
    assert "4" not in history
    assert "5" in history
    assert history.num_calls == module.KEPT_CALLS + 5


def test_that_they_were_is_kept():
    history = CallHistory()
    for number in range(module.KEPT_CALLS + 5):
        end(history, str(number))
    forgotten = [number for number in range(1000) if history.has_forgotten(str(number))]
    assert forgotten == [0, 1, 2, 3, 4]


def test_one_that_is_to_come_again_was_never_here():
    history = CallHistory()
    call = make_call("a")
    history.add(call)
    history.forget(call)
    assert not history.has_forgotten("a", since=0)


def test_where_traces_are_lost_nothing_that_could_have_been_here_is_denied(monkeypatch):
    """Of four calls two generations of two are kept: those before them may have been any."""
    monkeypatch.setattr(module, "KEPT_CALLS", 1)
    monkeypatch.setattr(module, "KEPT_IDS", 2)
    history = CallHistory()
    lost_until = 0
    for number in range(1, 12):
        assert history.num_calls == number - 1
        end(history, str(number))
        known = [n for n in range(1, number) if history.has_forgotten(str(n))]
        lost_until = next(iter(known), 1) - 1
        assert known == list(range(lost_until + 1, number))
        # one that was said when that many calls had been taken may have been the next of them
        vague = [n for n in range(number) if history.has_forgotten("never said", since=n)]
        assert set(range(lost_until)) <= set(vague)
        assert max(vague, default=-1) <= lost_until
    assert lost_until > 2


def test_large_ones_go_with_their_files_and_the_newest_stays(tmp_path):
    history = CallHistory()
    for number in range(3):
        (tmp_path / str(number)).touch()
        end(history, str(number), module.KEPT_BYTES, str(tmp_path / str(number)))
    assert [call.id for call in history.recent()] == ["2"]
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_one_that_runs_is_never_forgotten():
    history = CallHistory()
    running = make_call("running")
    history.add(running)
    for number in range(module.KEPT_CALLS + 5):
        end(history, str(number))
    assert "running" in history
    assert history.count_ahead(history[str(module.KEPT_CALLS)]) == 1
