"""The chart of `windlass report --png`: throughput over ranks beside the ideal line, and efficiency.

Drawn by matplotlib, imported only here and only when asked for: letters in a PNG need a font and a
rasteriser, which is nothing to write again. No window, no display, no global state of pyplot.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.errors import SpecError
from windlass.observe.training_report import TrainingRow, common_unit, throughput


def check_can_draw() -> None:
    """Before anything is read: whether there will be a chart."""
    _import("matplotlib.figure")


def write_chart(rows: Sequence[TrainingRow], path: Path) -> None:
    """rows: as `compare` returns them, the fewest ranks first."""
    unit = common_unit(rows)
    if not unit:
        raise SpecError(
            "these runs cannot be drawn together: some count tokens, some samples, some neither",
            hint="name runs of one kind, and give the meters' step() its tokens or samples",
        )
    figure = _import("matplotlib.figure").Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_throughput(left, rows, unit)
    _draw_efficiency(right, rows)
    try:
        _import("matplotlib.backends.backend_agg").FigureCanvasAgg(figure).print_png(str(path))
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}", hint="name another --png FILE"
        ) from error


def _draw_throughput(axes: Any, rows: Sequence[TrainingRow], unit: str) -> None:
    sizes = sorted({row.num_ranks for row in rows})
    one_rank = (throughput(rows[0], unit) or 0.0) / rows[0].num_ranks
    axes.plot(sizes, [one_rank * size for size in sizes], "--", color="0.6", label="ideal")
    for label, line in _lines(rows).items():
        rates = [throughput(row, unit) or 0.0 for row in line]
        axes.plot([row.num_ranks for row in line], rates, "o-", label=label)
        for row, rate in zip(line, rates, strict=True):
            shift = {"xytext": (6, -12), "textcoords": "offset points"}
            axes.annotate(f"{rate:,.4g}", (row.num_ranks, rate), fontsize="small", **shift)
    axes.set(title="Throughput", xlabel="ranks", ylabel=f"{unit} per second")
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.grid(visible=True, alpha=0.3)
    axes.margins(0.16)
    axes.legend(fontsize="small")


def _lines(rows: Sequence[TrainingRow]) -> dict[str, list[TrainingRow]]:
    """Rows that belong on one line: all of them, unless some number of ranks was run more than once."""
    if len({row.num_ranks for row in rows}) == len(rows):
        return {"measured": list(rows)}
    return {
        run: [row for row in rows if row.run == run] for run in dict.fromkeys(r.run for r in rows)
    }


def _draw_efficiency(axes: Any, rows: Sequence[TrainingRow]) -> None:
    bars: dict[str, list[float | None]] = {
        "throughput against ideal": [row.efficiency for row in rows],
        "productive time": [row.productive_share for row in rows],
        "MFU": [row.mfu for row in rows],
        "waiting for data": [row.data_wait_share for row in rows],
    }
    width = 0.8 / len(bars)
    for index, (label, shares) in enumerate(bars.items()):
        places = [place + (index - 1.5) * width for place in range(len(rows))]
        axes.bar(places, [100 * (share or 0.0) for share in shares], width, label=label)
    axes.axhline(100, linestyle="--", color="0.6")
    labels = [f"{row.run}\nranks: {row.num_ranks}" for row in rows]
    axes.set_xticks(list(range(len(rows))), labels, fontsize="small")
    axes.set(title="Shares", ylabel="percent", ylim=(0, None))
    axes.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            "--png needs matplotlib, which is not installed here",
            hint="pip install matplotlib; the table and --json need nothing",
        ) from error
