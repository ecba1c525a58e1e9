"""Unseeded streams differ between ranks and runs, as between interpreters. Seeded ones match Python's."""

from __future__ import annotations

import pytest

UNSEEDED = [
    "random",
    "random_instance",
    "system_random",
    "secrets",
    "urandom",
    "uuid4",
    "uuid1",
    "temporary_name",
]
HASHES = ["hash_of_text", "hash_of_bytes", "order_of_a_set"]


@pytest.fixture(scope="module", params=["fork", "spawn"])
def drawn(request, launch):
    """Return the numbers drawn by six processes: two runs of two ranks, and two runs of Python."""
    alone = [launch("python", "randoms.py", more).seen("randoms-0") for more in ("a", "b")]
    ours = []
    for more in ("a", "b"):
        ran = launch("windlass", "randoms.py", more, procs=2, options=("--start", request.param))
        ours += [ran.seen(f"randoms-{rank}") for rank in range(2)]
    return alone + ours


@pytest.mark.parametrize("name", UNSEEDED)
def test_unseeded_stream(drawn, name):
    values = [str(one["unseeded"][name]) for one in drawn]
    assert len(set(values)) == len(values), values


@pytest.mark.parametrize("name", HASHES)
def test_hash(drawn, name, request):
    """Forks of one interpreter share its hashes, because its dicts depend on them."""
    values = [str(one["unseeded"][name]) for one in drawn]
    is_forked = "fork" in request.node.callspec.id
    # two runs, and the two ranks of each share an interpreter
    num_interpreters = len(values) - 2 * is_forked
    assert len(set(values)) == num_interpreters, values


@pytest.mark.parametrize("name", ["random", "shuffled"])
def test_seeded_stream(drawn, name):
    assert [one["seeded"][name] for one in drawn] == [drawn[0]["seeded"][name]] * len(drawn)


def test_hashes_with_a_hash_seed(launch):
    env = {"PYTHONHASHSEED": "7"}
    python = launch("python", "randoms.py", env=env).seen("randoms-0")["unseeded"]
    ran = launch("windlass", "randoms.py", procs=2, env=env)
    for rank in range(2):
        ours = ran.seen(f"randoms-{rank}")["unseeded"]
        assert {k: v for k, v in ours.items() if "hash" in k or "order" in k} == {
            k: v for k, v in python.items() if "hash" in k or "order" in k
        }
