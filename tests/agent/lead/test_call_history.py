"""History of calls: recently ended ones are kept, within limits."""

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
    """Set an event loop, because calls have events that older Pythons bind to one."""
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


def test_oldest_calls_are_dropped():
    history = CallHistory()
    for number in range(module.KEPT_CALLS + 5):
        end(history, str(number))
    assert len(history.recent()) == module.KEPT_CALLS
    assert "4" not in history
    assert "5" in history
    assert history.num_calls == module.KEPT_CALLS + 5


def test_ids_of_dropped_calls_are_kept():
    history = CallHistory()
    for number in range(module.KEPT_CALLS + 5):
        end(history, str(number))
    forgotten = [number for number in range(1000) if history.has_forgotten(str(number))]
    assert forgotten == [0, 1, 2, 3, 4]


def test_call_to_be_sent_again_counts_as_unknown():
    history = CallHistory()
    call = make_call("a")
    history.add(call)
    history.forget(call)
    assert not history.has_forgotten("a", since=0)


def test_calls_older_than_all_kept_ids_may_have_been_here(monkeypatch):
    """IDs are kept in two generations of two calls. Any earlier ID may have been here."""
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
        # an ID sent when n calls had been taken may have been one of the next
        vague = [n for n in range(number) if history.has_forgotten("never said", since=n)]
        assert set(range(lost_until)) <= set(vague)
        assert max(vague, default=-1) <= lost_until
    assert lost_until > 2


def test_large_calls_are_dropped_with_their_files_except_the_newest(tmp_path):
    history = CallHistory()
    for number in range(3):
        (tmp_path / str(number)).touch()
        end(history, str(number), module.KEPT_BYTES, str(tmp_path / str(number)))
    assert [call.id for call in history.recent()] == ["2"]
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_running_call_is_never_dropped():
    history = CallHistory()
    running = make_call("running")
    history.add(running)
    for number in range(module.KEPT_CALLS + 5):
        end(history, str(number))
    assert "running" in history
    assert history.count_ahead(history[str(module.KEPT_CALLS)]) == 1
