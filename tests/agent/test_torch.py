"""Tests with real torch: training across nodes, threads, data loaders, `record`, many concurrent jobs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from waits import wait_for

import windlass as wl

pytestmark = pytest.mark.long

SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.full((4,), float(dist.get_rank()))
dist.all_reduce(value)
assert value[0] == sum(range(dist.get_world_size()))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_all_reduce_across_nodes(script, start):
    assert wl.run(script, nodes=2, procs=2, start=start, quiet=True) == [None] * 4


@pytest.mark.crowd
@pytest.mark.timeout(400)
def test_fifty_concurrent_jobs_do_not_collide(script):
    """There is no port race, so the ranks of each job find their own rank 0."""
    failures: list[BaseException] = []

    def one() -> None:
        try:
            wl.run(script, procs=2, quiet=True, join_timeout_s=300)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(wl.jobs()) == 50


def test_a_rank_dying_in_a_collective_frees_the_others():
    def collective():
        import signal

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    job = wl.submit(collective, nodes=2, procs=2)
    verdict = job.wait(60).verdict
    assert (verdict.rank, verdict.signal) == (3, "SIGKILL")


def test_restart_keeps_torch_imported(tmp_path):
    def train(folder):
        import sys

        import torch
        import torch.distributed as dist

        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        Path(folder, f"{attempt}-{os.environ['RANK']}").write_text(str(os.getppid()))
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        if attempt == 0 and dist.get_rank() == 1:
            sys.exit(9)
        dist.all_reduce(torch.ones(1))
        return attempt

    assert wl.run(train, (str(tmp_path),), nodes=2, procs=2, restarts=1, quiet=True) == [1] * 4
    for rank in range(4):  # one fork server forked both
        assert (tmp_path / f"0-{rank}").read_text() == (tmp_path / f"1-{rank}").read_text()


def test_omp_num_threads_is_respected():
    def threads():
        import torch

        return torch.get_num_threads(), len(os.listdir("/proc/self/task"))

    assert wl.run(threads, procs=2, quiet=True, env={"OMP_NUM_THREADS": "2"})[1][0] == 2
    assert wl.run(threads, procs=2, quiet=True)[0] == (1, 1)


def test_a_module_that_starts_threads_is_named_and_ranks_are_spawned(tmp_path, monkeypatch):
    (tmp_path / "threader.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def where():
        import sys

        return "threader" in sys.modules

    job = wl.submit(where, procs=2, preload=["threader"])
    assert job.results() == [False, False]
    [warning] = [c for c in job.status().conditions if c.reason == "ForkUnsafe"]
    assert "importing threader started 1 thread" in warning.message


def test_numpy_is_preloaded_with_one_thread_and_gets_its_threads_back():
    def count():
        import sys

        preloaded = "numpy" in sys.modules
        import numpy as np

        a = np.ones((600, 600))
        (a @ a).sum()
        return preloaded, len(os.listdir("/proc/self/task")), np.random.rand()

    job = wl.submit(count, procs=1, preload=["numpy"])
    [(preloaded, num_threads, _)] = job.results()
    assert preloaded
    assert num_threads == len(os.sched_getaffinity(0))
    assert not [c for c in job.status().conditions if c.type == "warning"]
    first, second = wl.run(count, procs=2, preload=["numpy"], quiet=True)
    assert first[2] != second[2]  # each rank has its own generator


def test_data_loader_workers_and_multiprocessing(tmp_path):
    path = tmp_path / "loader.py"
    path.write_text(
        "import multiprocessing as mp, torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Squares(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return torch.tensor(i * i)\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    total = sum(int(b.sum()) for b in DataLoader(Squares(), batch_size=2, num_workers=2))\n"
        "    assert total == 140, total\n"
        "    for method in ('fork', 'spawn'):\n"
        "        with mp.get_context(method).Pool(2) as pool:\n"
        "            assert pool.map(double, [1, 2]) == [2, 4]\n"
        "    print('fine')\n"
    )
    job = wl.submit(path, procs=2)
    assert job.wait(90).phase.value == "succeeded", [line.text for line in job.logs()]
    assert [line.text for line in job.logs(grep="fine")] == ["fine", "fine"]


def test_record_writes_its_error_file(tmp_path):
    path = tmp_path / "recorded.py"
    path.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main(): raise RuntimeError('recorded')\n"
        "main()\n"
    )
    job = wl.submit(path)
    assert isinstance(job.exception(), RuntimeError)
    # for a command, only the error file has the exception
    job = wl.submit([os.sys.executable, str(path)])
    verdict = job.wait(60).verdict
    assert "RuntimeError: recorded" in verdict.message or "RuntimeError" in verdict.exception


def test_missing_torch_is_reported(monkeypatch):
    import sys

    bare = Path(sys.base_prefix, "bin", "python3")

    def needs_torch():
        import torch

        return torch.__version__

    job = wl.submit(needs_torch, python=str(bare))
    verdict = job.wait(30).verdict
    assert "No module named 'torch'" in verdict.message
    assert verdict.next == f"{bare} -m pip install torch"
    wait_for(
        lambda: any("torch could not be preloaded" in c.message for c in job.status().conditions),
        "a warning",
    )
