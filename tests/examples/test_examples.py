"""Examples. Each runs as a reader would type it, and prints what its page promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import windlass as kt

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))  # the other files belong to a guide
WINDLASS = (sys.executable, "-m", "windlass.cli.main")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a command from the project's root with a new home."""
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_ddp_under_windlass(run):
    out = run(*WINDLASS, "run", "examples/01_ddp.py", "--nodes", "2", "--procs", "2")
    assert re.search(r"final loss 0\.\d+, \d+\.\d% accuracy", out), out


def test_ddp_unchanged_under_torchrun(run):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    out = run(*torchrun, "--nproc-per-node", "2", "examples/01_ddp.py")
    assert "final loss 0." in out


def test_function(run):
    out = run(sys.executable, "examples/02_function.py")
    assert [line.split(":")[0] for line in out.splitlines()] == [
        *(f"rank {rank}" for rank in range(4)),
        "came back as ZeroDivisionError",
    ]
    assert len(set(re.findall(r"together (3\.14\d+)", out))) == 1, out


def test_restart(run):
    out = run(*WINDLASS, "run", "examples/03_restart.py", "--procs", "2", "--restarts", "1")
    assert "attempt 1 resumed from step 100" in out


def test_fn(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    lines = run(sys.executable, "examples/04_fn.py").splitlines()
    assert [re.sub(r"\s+[\d.]+ s$", "", line) for line in lines] == [
        "first call     [5.0, 5.0, 5.0, 5.0]",
        "second call    [5.0, 5.0, 5.0, 5.0]",
        "after an edit  [50.0, 50.0, 50.0, 50.0]",
    ]


def test_cls(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    *lines, last = run(sys.executable, "examples/05_cls.py").splitlines()
    counts = [re.findall(r"after (\d+) steps", line) for line in lines]
    assert counts == [["20", "20"], ["40", "40"], ["60", "60"]], lines
    assert re.fullmatch(r"of rank 0 alone: y = (2\.\d+|3\.\d+) x \+ \S+ after 60 steps", last), last


# Runs cells as notebooks do: one by one, in a __main__ without a file.
CELLS = """
import sys
main = sys.modules["__main__"].__dict__
for number, cell in enumerate(open(sys.argv[1]).read().split("\\n# %%")):
    exec(compile(cell.partition("\\n")[2] if number else cell, f"<cell {number}>", "exec"), main)
"""


def test_notebook(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    out = run(sys.executable, "-c", CELLS, "examples/08_notebook.py")
    assert out.splitlines() == [
        "[6.0, 6.0, 6.0, 6.0]",
        "[600.0, 600.0, 600.0, 600.0]",
        "[100.0, 101.0, 102.0, 103.0]",
    ]


def test_app(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    out = run(sys.executable, "examples/06_app.py")
    assert re.search(r"\A\[node 0\] final loss 0\.\d+, .* accuracy\nthe app succeeded\n", out), out


def test_decorators(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    assert run(*WINDLASS, "deploy", "examples/07_decorators.py").startswith("estimate_pi\tfunction")
    out = run(sys.executable, "examples/07_decorators.py")
    kt.Compute(name="estimates").teardown()
    assert re.search(r"from every rank: \[(3\.1\d+), \1, \1, \1\]\nby its name alone: \[3", out), (
        out
    )


def test_trainer_client(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    out = run(sys.executable, "examples/09_trainer_client.py")
    assert (
        len(re.findall(r"^\[\d/\d\] epoch \d: loss \d\.\d+ on rank \d$", out, re.MULTILINE)) == 6
    ), out
    assert re.search(r"^Succeeded: \d+% accuracy, the first is a T-shirt$", out, re.MULTILINE), out


def test_torch_trainer(run, monkeypatch):
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole, _, resumed = run(sys.executable, "examples/10_torch_trainer.py").splitlines()
    assert re.fullmatch(r"whole  1 ranks, steps 0 to 240: loss 0\.\d+, \d+\.\d% accuracy", whole)
    assert re.match(r"cut    1 ranks, steps 1\d\d to 240: ", resumed)
    assert resumed.partition(": ")[2] == whole.partition(": ")[2]


def test_every_example_fits_one_screen_and_has_a_test():
    tests = Path(__file__).read_text()
    for example in EXAMPLES:
        assert f"examples/{example.name}" in tests, f"no test runs {example.name}"
        assert len(example.read_text().splitlines()) < 60, f"{example.name} is longer than a screen"
