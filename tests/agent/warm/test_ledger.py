"""The ledger of calls: what ended lately stays, within bounds."""

from __future__ import annotations

import asyncio

import pytest

from windlass.agent.warm import ledger as module
from windlass.agent.warm.calls import Answer, Call
from windlass.agent.warm.ledger import Ledger


@pytest.fixture(autouse=True)
def loop():
    """Calls have events, which older Pythons tie to a loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def end(ledger, name, size=0, file=""):
    call = Call(name, {"collect": "all"}, b"")
    ledger.add(call)
    call.answers[0] = Answer({"sizes": [size]}, b"", file)
    call.state = "returned"
    ledger.settle(call)
    return call


def test_calls_are_found_again():
    ledger = Ledger()
    call = end(ledger, "a")
    assert ledger["a"] is call
    assert "a" in ledger
    assert ledger.get("b") is None


def test_the_oldest_go_when_there_are_many():
    ledger = Ledger()
    for number in range(module.KEPT_CALLS + 5):
        end(ledger, str(number))
    assert len(ledger.recent()) == module.KEPT_CALLS
    assert "4" not in ledger
    assert "5" in ledger
    assert ledger.num_calls == module.KEPT_CALLS + 5


def test_large_ones_go_with_their_files_and_the_newest_stays(tmp_path):
    ledger = Ledger()
    for number in range(3):
        (tmp_path / str(number)).touch()
        end(ledger, str(number), module.KEPT_BYTES, str(tmp_path / str(number)))
    assert [call.id for call in ledger.recent()] == ["2"]
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_one_that_runs_is_never_forgotten():
    ledger = Ledger()
    running = Call("running", {}, b"")
    ledger.add(running)
    for number in range(module.KEPT_CALLS + 5):
        end(ledger, str(number))
    assert "running" in ledger
    assert ledger.count_ahead(ledger[str(module.KEPT_CALLS)]) == 1
