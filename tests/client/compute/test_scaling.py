"""Concurrent scaling by two clients. Lead and Job agree in the end, in whatever order requests arrive."""

from __future__ import annotations

import itertools
import threading

import pytest

from windlass.client.compute.nodes.live_nodes import scale_to
from windlass.errors import EngineError


class Cluster:
    """Lead and Job, each of which executes one request at a time."""

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
    """Lets threads proceed one step at a time in a given order."""

    def __init__(self, order):
        self._order = list(order)
        self._changed = threading.Condition()

    def step(self, name, do, *args):
        with self._changed:
            assert self._changed.wait_for(lambda: not self._order or self._order[0] == name, 20)
            if self._order:
                self._order.pop(0)
            try:
                return do(*args)
            finally:
                self._changed.notify_all()

    def leave(self, name):
        with self._changed:
            self._order = [one for one in self._order if one != name]
            self._changed.notify_all()


def scale_in_turns(cluster, wanted, order):
    """Run two clients in steps as `order` says. A client that remains then continues alone."""
    turns = Turns(order)
    results = {}

    def run(name):
        results[name] = scale_to(
            lambda asked: turns.step(name, cluster.ask_lead, asked),
            lambda new, in_all: turns.step(name, cluster.grow, new, in_all),
            wanted[name],
        )
        turns.leave(name)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


@pytest.mark.parametrize("wanted", [(3, 5), (5, 1), (1, 4), (4, 4)])
def test_every_order_of_two_clients_ends_in_agreement(wanted):
    for order in set(itertools.permutations("aaabbb")):
        cluster = Cluster(2)
        results = scale_in_turns(cluster, dict(zip("ab", wanted, strict=True)), order)
        assert cluster.lead == cluster.job, order
        assert cluster.lead in wanted
        assert set(range(2, cluster.lead)) <= cluster.started, order
        assert {there for _, there in results.values()} <= set(wanted)


def test_one_client_alone():
    cluster = Cluster(2)
    assert scale_to(cluster.ask_lead, cluster.grow, 4) == (2, 4)
    assert (cluster.lead, cluster.job, cluster.started) == (4, 4, {2, 3})
    assert scale_to(cluster.ask_lead, cluster.grow, 1) == (4, 1)
    assert (cluster.lead, cluster.job) == (1, 1)


def test_outdated_job_is_scaled_again():
    """A killed client may have asked only one of the two."""
    cluster = Cluster(3)
    cluster.job = 2
    assert scale_to(cluster.ask_lead, cluster.grow, 3) == (3, 3)
    assert cluster.job == 3


def test_other_clients_that_scale_forever():
    cluster, numbers = Cluster(1), itertools.cycle((2, 3))
    with pytest.raises(EngineError, match="other clients keep changing the number of nodes"):
        scale_to(lambda asked: cluster.ask_lead(asked) and next(numbers), cluster.grow, 1)
