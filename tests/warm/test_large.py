"""Large arguments and results: they arrive complete, are writable, and are copied only a few times."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy
import pytest
import torch
import warm_tasks as tasks
from waits import wait_for

import windlass as kt

MB = 1 << 20


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("keep", ["", "process"], ids=["fresh", "kept"])
def test_ten_megabytes_round_trip(warm, library, keep):
    remote = kt.fn(tasks.double, keep=keep).to(warm).distribute("spmd", workers=2)
    given = numpy.arange(10 * MB // 8)
    given = torch.from_numpy(given) if library == "torch" else given
    before = given[3].item()
    found = remote(given)
    assert len(found) == 2
    for array in found:
        assert type(array) is type(given)
        assert bool((array == given * 2).all())
        array[0] = 7
    assert given[3].item() == before


def test_pieces_of_all_sizes(warm):
    """The sizes are around the thresholds at which values are sent differently."""
    remote = kt.fn(tasks.echo, keep="process").to(warm)
    for size in (0, 1, 32 << 10, (32 << 10) + 1, MB - 1, MB, MB + 1, 4 * MB, 4 * MB + 1, 9 * MB):
        array = numpy.full(size, size % 251, dtype=numpy.uint8)
        (found, text), _ = remote(array, "x" * size)
        assert found.tobytes() == array.tobytes()
        assert len(text) == size


def test_results_of_every_rank(warm):
    remote = kt.fn(tasks.make_numpy).to(warm).distribute("spmd", workers=2, procs=2)
    found = remote(3 * MB)
    assert [int(array[-1]) for array in found] == [0, 1, 2, 3]
    assert {len(array) for array in found} == {3 * MB}


def test_a_stream_of_large_items(warm, project):
    project.write(
        "{stem}.py",
        """
        import numpy

        def arrays():
            for number in range(4):
                yield numpy.full(3 << 20, number, dtype=numpy.uint8)
        """,
    )
    remote = kt.fn(project.load("{stem}").arrays).to(warm)
    assert [int(array.sum()) for array in remote(stream=True)] == [n * 3 * MB for n in range(4)]


@pytest.mark.long
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_two_hundred_megabytes_are_copied_a_few_times_only(warm, start_client, library):
    """A separate client process has its own peak memory."""
    client = start_client(
        warm,
        f"""
        import json
        import numpy, torch
        size = 200 << 20
        remote(tasks.make_{library})(1)
        before = tasks.read_peak()
        if "{library}" == "numpy":
            given = numpy.ones(size, dtype=numpy.uint8)
        else:
            given = torch.ones(size, dtype=torch.uint8)
        number, rank, agent = remote(tasks.measure)(given)
        sent = tasks.read_peak()
        del given
        found = remote(tasks.make_{library})(size)
        print(json.dumps(dict(
            number=number, rank=rank, agent=agent, sent=sent - before,
            got=tasks.read_peak() - before, length=len(found), last=int(found[-1]),
        )))
        """,
    )
    found = json.loads(client.finish())
    assert (found["number"], found["length"], found["last"]) == (200 * MB, 200 * MB, 0)
    # besides the array itself: at most one copy while sending, two while receiving
    assert found["sent"] < 500 * MB
    assert found["got"] < 700 * MB
    assert found["rank"] < 800 * MB
    assert found["agent"] < 500 * MB


def test_large_results_of_concurrent_calls_all_arrive(warm):
    """The results exceed the lead's limit, but none is dropped before its caller receives it."""
    remote = kt.fn(tasks.make_numpy, keep="process").to(warm).distribute("spmd", workers=2)
    sizes, errors = [], []

    def call():
        try:
            for _ in range(3):
                sizes.extend(len(array) for array in remote(60 * MB))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert sizes == [60 * MB] * 18


@pytest.mark.long
@pytest.mark.local_only("a pod's memory goes with the pod")
def test_payloads_are_deleted(on, make):
    compute = make()
    remote = kt.fn(tasks.echo).to(compute)
    for _ in range(3):
        remote(numpy.zeros(4 * MB, dtype=numpy.uint8))
    pattern = f"*{on.job(compute).id}*"
    memory = Path(f"/dev/shm/windlass-{os.geteuid()}")
    held = [path for folder in memory.glob(pattern) for path in folder.iterdir()]
    assert sum(path.stat().st_size for path in held) < 20 * MB
    compute.teardown()
    wait_for(lambda: not list(memory.glob(pattern)), "payloads are deleted with their nodes", 20.0)
