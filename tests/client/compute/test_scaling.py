"""Two clients that scale at once: in whatever order their words arrive, lead and Job agree in the end."""

from __future__ import annotations

import itertools
import threading

import pytest

from windlass.client.compute.nodes.live_nodes import scale_to
from windlass.errors import EngineError


class Place:
    """A lead and a Job, each of which does what it is told, one thing at a time."""

    def __init__(self, num_nodes):
        self.lead = self.job = num_nodes
        self.started: set[int] = set()

    def ask_lead(self, asked):
        before = self.lead
        self.lead = before if asked is None else asked
        return before

    def grow(self, new, in_all):
        self.started |= set(new)
        self.job = in_all


class Turns:
    """Lets threads go one step at a time, in a given order."""

    def __init__(self, order):
        self._order = list(order)
        self._changed = threading.Condition()

    def step(self, who, do, *args):
        with self._changed:
            assert self._changed.wait_for(lambda: not self._order or self._order[0] == who, 20)
            if self._order:
                self._order.pop(0)
            try:
                return do(*args)
            finally:
                self._changed.notify_all()

    def leave(self, who):
        with self._changed:
            self._order = [one for one in self._order if one != who]
            self._changed.notify_all()


def scale_in_turns(place, wanted, order):
    """Two clients, one step each as `order` says; afterwards whoever is left goes on alone."""
    turns = Turns(order)
    results = {}

    def run(who):
        results[who] = scale_to(
            lambda asked: turns.step(who, place.ask_lead, asked),
            lambda new, in_all: turns.step(who, place.grow, new, in_all),
            wanted[who],
        )
        turns.leave(who)

    threads = [threading.Thread(target=run, args=(who,), daemon=True) for who in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


@pytest.mark.parametrize("wanted", [(3, 5), (5, 1), (1, 4), (4, 4)])
def test_every_order_of_two_clients_ends_in_agreement(wanted):
    for order in set(itertools.permutations("aaabbb")):
        place = Place(2)
        results = scale_in_turns(place, dict(zip("ab", wanted, strict=True)), order)
        assert place.lead == place.job, order
        assert place.lead in wanted
        assert set(range(2, place.lead)) <= place.started, order
        assert {there for _, there in results.values()} <= set(wanted)


def test_one_client_alone():
    place = Place(2)
    assert scale_to(place.ask_lead, place.grow, 4) == (2, 4)
    assert (place.lead, place.job, place.started) == (4, 4, {2, 3})
    assert scale_to(place.ask_lead, place.grow, 1) == (4, 1)
    assert (place.lead, place.job) == (1, 1)


def test_a_job_that_was_left_behind_is_told_again():
    """By a client that was killed between its two words."""
    place = Place(3)
    place.job = 2
    assert scale_to(place.ask_lead, place.grow, 3) == (3, 3)
    assert place.job == 3


def test_others_that_never_stop():
    place, numbers = Place(1), itertools.cycle((2, 3))
    with pytest.raises(EngineError, match="other clients keep changing the number of nodes"):
        scale_to(lambda asked: place.ask_lead(asked) and next(numbers), place.grow, 1)
