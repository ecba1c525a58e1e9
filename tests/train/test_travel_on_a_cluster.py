"""Training library in pods whose image has no windlass: scripts, modules, commands and calls."""

from __future__ import annotations

import pytest

import windlass as wl

pytestmark = pytest.mark.cluster

SCRIPT = """
from windlass.train import get_context
import windlass.train
context = get_context()
total = context.total(context.rank + 1)[0]
grace_s = context.preemption.grace_s
line = f"rank {context.rank}: {total:g} {windlass.train.__file__} {context.out} {grace_s:g}"
print(line + "\\n", end="")  # in one piece: torchrun's workers share a pipe
"""


@pytest.fixture
def project(space, tmp_path, monkeypatch):
    (tmp_path / "windlass.toml").touch()
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def make_describe():
    """Return a function that is defined in a function, and is therefore sent by value."""

    def describe() -> tuple[float, str]:
        import windlass.train
        from windlass.train import get_context

        return get_context().total(1.0)[0], windlass.train.__file__

    return describe


@pytest.mark.parametrize(
    "target", ["script.py", ["torchrun", "--nproc-per-node", "2", "script.py"]], ids=["script", "command"]
)  # fmt: skip
def test_a_job(project, target):
    # the line of a launcher is in the command itself
    procs = {"procs": 2} if target == "script.py" else {}
    job = wl.submit(target, nodes=1, grace_s=9, **procs)
    job.wait(timeout_s=180)
    lines = [line.text for line in job.logs() if "rank " in line.text]
    assert len(lines) == 2
    for line in lines:
        assert ": 3 /windlass/job/files/train.pyz/windlass/train/__init__.py" in line
        assert line.rstrip().endswith("/windlass/job/out 9")


def test_a_function(project):
    results = wl.run(make_describe(), nodes=2, quiet=True)
    assert [total for total, _ in results] == [2.0, 2.0]
    assert all(path.startswith("/windlass/job/files/train.pyz/") for _, path in results)


def test_a_call_of_a_compute(project):
    compute = wl.Compute(cpus=1, name="train-travels")
    try:
        total, path = wl.fn(make_describe()).to(compute)()
    finally:
        compute.teardown()
    assert total == 1.0
    assert path.startswith("/windlass/job/files/train.pyz/")
