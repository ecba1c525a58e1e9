"""Chart of a report, which is a PNG or a hint to install matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from observe.metrics_lines import MetricsLines

from windlass.errors import SpecError
from windlass.observe.training_report import (
    TrainingRow,
    check_can_draw,
    compare,
    make_report_rows,
    read_sessions,
    write_chart,
)


def rows_of(folder: Path, *, unit: str, sizes: tuple[int, ...]) -> list[TrainingRow]:
    rows = []
    for index, world_size in enumerate(sizes):
        lines = MetricsLines(folder / str(index))
        lines.start(world_size=world_size)
        lines.steps(10, 20, **{unit: 10.0 * world_size})
        rows += make_report_rows(str(index), read_sessions(lines.path))
    return compare(rows)


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4), (2, 2, 4)])
@pytest.mark.filterwarnings("default")
def test_a_png_is_written(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    write_chart(rows_of(tmp_path, unit="tokens_per_s", sizes=sizes), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_a_common_unit_are_not_drawn(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, unit="loss", sizes=(1, 2))
    with pytest.raises(SpecError, match="some count tokens, some samples, some neither"):
        write_chart(rows, tmp_path / "chart.png")


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SpecError, match="pip install matplotlib"):
        check_can_draw()
