"""`windlass report` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.process import Ran
from observe.metrics_lines import MetricsLines

Cli = Callable[..., Ran]

TRAIN = """
import os
from pathlib import Path

from observe.metrics_lines import MetricsLines


def train() -> None:
    if os.environ["RANK"] == "0":
        lines = MetricsLines(Path(os.environ["WINDLASS_OUT"]) / "tiny")
        lines.start(world_size=int(os.environ["WORLD_SIZE"]))
        lines.steps(10, 20, 30, samples_per_s=12.5, mfu=0.5)
"""


def write_runs(folder: Path) -> None:
    for world_size, samples_per_s in ((1, 1000.0), (2, 1900.0), (4, 3000.0)):
        lines = MetricsLines(folder / f"ranks-{world_size}")
        lines.start(world_size=world_size)
        elapsed_s = 10_000 * world_size / samples_per_s  # each rank has an equal share of a step
        rates = {"samples_per_s": samples_per_s, "data_wait_share": 0.25}
        lines.steps(10, 20, 30, 40, elapsed_s=elapsed_s, **rates)


def test_a_folder_of_runs_as_table_and_json(windlass: Cli, tmp_path: Path) -> None:
    write_runs(tmp_path / "out")
    ran = windlass("report", str(tmp_path / "out"))
    assert ran.code == 0
    header, *rows = ran.out.splitlines()
    assert header.split()[:6] == ["RUN", "RANKS", "STEPS", "SAMPLES/S", "SPEED-UP", "EFFICIENCY"]
    assert rows[2].split()[:6] == ["ranks-4", "4", "40", "3,000", "3.00x", "75.0%"]
    assert "ranks-2 on 2 ranks waits for data 25% of the time" in ran.err
    shown = windlass("report", str(tmp_path / "out"), "--json").json
    assert [row["efficiency"] for row in shown] == pytest.approx([1.0, 0.95, 0.75])
    assert shown[0]["productive_share"] == 1.0


def test_runs_of_equal_name_are_distinguished(windlass: Cli, tmp_path: Path) -> None:
    """`run` is the default name of a run, so runs of two jobs may share it."""
    for job, world_size in (("first", 1), ("second", 2), ("third", 4)):
        lines = MetricsLines(tmp_path / job / ("named" if job == "third" else "run"))
        lines.start(world_size=world_size)
        lines.steps(10, 20, 30, samples_per_s=100.0, data_wait_share=0.5)
    ran = windlass("report", *(str(tmp_path / job) for job in ("first", "second", "third")))
    shown = [row.split()[0] for row in ran.out.splitlines()[1:]]
    assert shown == [f"{tmp_path}/first/run", f"{tmp_path}/second/run", "named"]
    assert f"{tmp_path}/first/run on 1 ranks waits for data" in ran.err


def test_the_output_folder_of_a_job(windlass: Cli, project: Path) -> None:
    (project / "tiny_training.py").write_text(TRAIN)
    tests = str(Path(__file__).parents[1])
    job = windlass(
        "run", "tiny_training.py::train", "--procs", "2", env={"PYTHONPATH": tests}
    ).job_id
    ran = windlass("report", job)
    assert ran.out.splitlines()[1].split()[:4] == ["tiny", "2", "30", "12.5"], ran.err


def test_folders_without_a_training(windlass: Cli, tmp_path: Path) -> None:
    ran = windlass("report", str(tmp_path))
    assert ran.code == 2
    assert f"no metrics.jsonl found in {tmp_path}" in ran.err
    assert "windlass.train writes it" in ran.err
    assert windlass("report", "nothing-here").code == 2
