"""Throughput, efficiency and productive time of runs with known times."""

from __future__ import annotations

from pathlib import Path

import pytest
from observe.metrics_lines import MetricsLines

from windlass.observe.training_report import (
    compare,
    find_metrics_files,
    find_remarks,
    make_report_rows,
    read_sessions,
)


def write_run(
    folder: Path, *, world_size: int, tokens_per_s: float, batch: float = 100.0, **metrics: float
) -> Path:
    lines = MetricsLines(folder)
    lines.start(world_size=world_size)
    lines.steps(10, elapsed_s=60.0, tokens_per_s=1.0)  # includes compilation
    elapsed_s = 10 * batch / tokens_per_s  # time of ten steps
    lines.steps(20, 30, 40, elapsed_s=elapsed_s, tokens_per_s=tokens_per_s, **metrics)
    lines.end()
    return lines.path


def test_efficiency_is_against_the_fewest_ranks(tmp_path: Path) -> None:
    paths = {
        "four": write_run(tmp_path / "four", world_size=4, tokens_per_s=300.0, mfu=0.3),
        "one": write_run(tmp_path / "one", world_size=1, tokens_per_s=100.0, mfu=0.4),
    }
    one, four = compare(
        [row for name, path in paths.items() for row in make_report_rows(name, read_sessions(path))]
    )
    assert (one.run, one.speed_up, one.efficiency) == ("one", 1.0, 1.0)
    assert (four.run, four.speed_up, four.efficiency) == (
        "four",
        pytest.approx(3.0),
        pytest.approx(0.75),
    )
    assert (four.tokens_per_s, four.mfu) == (pytest.approx(300.0), pytest.approx(0.3))
    assert (four.num_steps, four.num_sessions) == (40, 1)


def test_repeated_steps_and_the_time_between_are_lost(tmp_path: Path) -> None:
    lines = MetricsLines(tmp_path)
    lines.start(world_size=2)
    lines.steps(9, 19, 29, samples_per_s=50.0)  # steps 0 to 29
    lines.start(world_size=2, attempt=1, after_s=15.0)
    lines.steps(24, 34, samples_per_s=50.0)  # starts at step 15
    (row,) = make_report_rows("run", read_sessions(lines.path))
    assert row.num_steps == 35
    assert row.wall_s == pytest.approx(30 + 15 + 20)
    assert row.productive_s == pytest.approx(15 + 20)
    assert row.productive_share == pytest.approx(35 / 65)
    assert "started 2 times, and 46% of its time" in next(iter(find_remarks([row])))


def test_run_resumed_with_fewer_ranks_has_two_rows(tmp_path: Path) -> None:
    lines = MetricsLines(tmp_path)
    lines.start(world_size=4)
    lines.steps(10, samples_per_s=80.0)
    lines.start(world_size=2, attempt=1)
    lines.steps(20, samples_per_s=40.0)
    rows = compare(make_report_rows("run", read_sessions(lines.path)))
    assert [(row.num_ranks, row.num_steps, row.speed_up) for row in rows] == [
        (2, 10, 1.0),
        (4, 10, 2.0),
    ]
    assert rows[1].efficiency == pytest.approx(1.0)


def test_runs_of_different_units_are_not_compared(tmp_path: Path) -> None:
    lines = MetricsLines(tmp_path / "a")
    lines.start(world_size=1)
    lines.steps(10, samples_per_s=80.0)
    other = write_run(tmp_path / "b", world_size=2, tokens_per_s=5.0)
    rows = compare(
        [
            *make_report_rows("a", read_sessions(lines.path)),
            *make_report_rows("b", read_sessions(other)),
        ]
    )
    assert [(row.speed_up, row.efficiency) for row in rows] == [(None, None)] * 2


def test_malformed_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    lines = MetricsLines(tmp_path)
    lines.start(world_size=2)
    lines.steps(10, samples_per_s=80.0)
    with lines.path.open("a") as file:
        file.write(
            '[1]\n{"event":"metrics","step":1,"metrics":{"num_steps":"nan","elapsed_s":1}}\n{"ev'
        )
        file.write(
            '\n{"event":"metrics","step":11,"metrics":{"val_loss":1.0}}\n{"event":"metrics"}\n'
        )
    (row,) = make_report_rows("run", read_sessions(lines.path)[:1])
    assert row.num_steps == 10


def test_interval_recorded_twice_counts_once(tmp_path: Path) -> None:
    lines = MetricsLines(tmp_path)
    lines.start(world_size=2)
    lines.steps(10, 20, 20, samples_per_s=80.0)
    (row,) = make_report_rows("run", read_sessions(lines.path))
    assert (row.num_steps, row.productive_s) == (20, 20.0)


def test_waiting_for_data_is_noted(tmp_path: Path) -> None:
    path = write_run(tmp_path, world_size=2, tokens_per_s=5.0, data_wait_share=0.64)
    (row,) = make_report_rows("slow", read_sessions(path))
    assert list(find_remarks([row])) == [
        "slow on 2 ranks waits for data 64% of the time: use more workers for its loader, or cheaper samples"
    ]


def test_files_of_a_folder_of_runs(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "out" / name, world_size=1, tokens_per_s=1.0) for name in "ab"]
    assert find_metrics_files(tmp_path) == paths
    assert find_metrics_files(tmp_path / "out" / "a") == paths[:1]
    assert find_metrics_files(paths[1]) == paths[1:]


@pytest.mark.parametrize(("batch", "efficiency"), [(100.0, 0.75), (400.0, 0.75), (800.0, None)])
def test_efficiency_is_of_steps_of_one_size(
    tmp_path: Path, batch: float, efficiency: float | None
) -> None:
    """Sizes must be equal in total, or equal per rank. Otherwise there is no efficiency, but a note."""
    one = write_run(tmp_path / "one", world_size=1, tokens_per_s=100.0)
    four = write_run(tmp_path / "four", world_size=4, tokens_per_s=300.0, batch=batch)
    rows = compare(
        [
            *make_report_rows("one", read_sessions(one)),
            *make_report_rows("four", read_sessions(four)),
        ]
    )
    assert rows[1].efficiency == (None if efficiency is None else pytest.approx(efficiency))
    remarks = [remark for remark in find_remarks(rows) if "no efficiency" in remark]
    remark = "four on 4 ranks has no efficiency: its steps have 800 tokens, those of one 100"
    assert remarks == ([] if efficiency is not None else [remark])


def test_unterminated_and_deeply_nested_lines_are_skipped(tmp_path: Path) -> None:
    path = write_run(tmp_path, world_size=1, tokens_per_s=100.0)
    expected = read_sessions(path)
    with path.open("ab") as file:
        file.write(b'{"event": "metrics", "a": ' + b"[" * 200_000 + b"\n")
        file.write(b'{"event": "start", "text": "' + b"x" * (5 << 20) + b'"}\n')
        file.write(b"\0" * (3 << 20))
    assert read_sessions(path) == expected
