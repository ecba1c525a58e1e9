"""`windlass report`: comparison of training runs, from their metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from windlass import names, records
from windlass.cli.flags import complete_jobs, json_option, load_settings, place_options
from windlass.cli.show import print_json, print_table, render_short
from windlass.cli.verb_table import Verb
from windlass.client.jobs.find_jobs import find_job
from windlass.client.terminal import print_notice
from windlass.engines.engine_table import make_engine
from windlass.errors import SpecError
from windlass.observe.training_report import (
    TrainingRow,
    check_can_draw,
    common_unit,
    compare,
    find_metrics_files,
    find_remarks,
    make_report_rows,
    read_sessions,
    throughput,
    write_chart,
)


@click.command(cls=Verb)
@click.argument(
    "places", metavar="JOB|FOLDER...", nargs=-1, required=True, shell_complete=complete_jobs
)
@place_options
@click.option("--png", metavar="FILE", help="Draw throughput and efficiency into this file")
@json_option
def report(places: tuple[str, ...], png: str | None, as_json: bool) -> None:
    """Compare the throughput and efficiency of training runs.

    Shows throughput, speed-up, efficiency against the ideal, MFU, waits and productive time. The ideal is the
    throughput of the smallest number of ranks, scaled to the number of ranks.

    Reads the metrics.jsonl that windlass.train writes into the folder of a run. A FOLDER may hold several
    runs. For a JOB, its output folder is used. Rates exclude the first line of each start, which includes
    compilation, if at least two more lines follow.
    """
    if png:
        check_can_draw()
    rows = compare(_make_runs_unique([row for place in places for row in _read(place)]))
    if as_json:
        shown = [{**records.to_json(row), "productive_share": row.productive_share} for row in rows]
        print_json(shown)
    else:
        _show(rows)
    for remark in find_remarks(rows):
        print_notice(remark)
    if png:
        write_chart(rows, Path(png))
        print_notice(f"wrote {png}")


def _read(place: str) -> list[tuple[str, TrainingRow]]:
    """Return the rows of a job or folder, each with the longer name of its run."""
    folder = Path(place) if Path(place).exists() else _output_of(place)
    files = find_metrics_files(folder)
    rows = [
        (_long_name(place, folder, file), row)
        for file in files
        for row in make_report_rows(file.absolute().parent.name, read_sessions(file))
    ]
    if not rows:
        missing = "no steps found in" if files else f"no {names.METRICS_FILE} found in"
        raise SpecError(
            f"{missing} {folder}",
            hint="windlass.train writes it to the run's folder, <out>/<run>, when it logs",
        )
    return rows


def _long_name(place: str, folder: Path, file: Path) -> str:
    """Return JOB/RUN, or the path as the user typed it, without the name of the file."""
    return (Path(place) / file.relative_to(folder)).parent.as_posix()


def _make_runs_unique(rows: Sequence[tuple[str, TrainingRow]]) -> list[TrainingRow]:
    """Return the rows, with longer names for runs that share one, such as those of several jobs."""
    long_names: dict[str, set[str]] = {}
    for long_name, row in rows:
        long_names.setdefault(row.run, set()).add(long_name)
    return [
        replace(row, run=long_name) if len(long_names[row.run]) > 1 else row
        for long_name, row in rows
    ]


def _output_of(job_text: str) -> Path:
    """Return the output folder of a job. Raise SpecError if it is not on this machine."""
    settings = load_settings()
    job = find_job(job_text, settings)
    out = make_engine(job.ref.engine, settings).plan(job.ref).env.get(names.OUT, "")
    if not job.is_here:
        raise SpecError(
            f"{job.id} ran in pods: what it wrote to {out or names.POD_OUT} is not on this machine",
            hint="copy the run's folder from its volume (`kubectl cp`), then run `windlass report FOLDER`",
        )
    if not out or not Path(out).is_dir():
        raise SpecError(
            f"{job.id} wrote nothing to its output folder, {out or '(none)'}",
            hint="if it wrote elsewhere, run `windlass report FOLDER`",
        )
    return Path(out)


def _show(rows: Sequence[TrainingRow]) -> None:
    unit = common_unit(rows)
    header = ["RUN", "RANKS", "STEPS", f"{unit or 'TOKENS'}/S".upper(), "SPEED-UP", "EFFICIENCY"]
    header += ["STEP", "DATA WAIT", "MFU", "MEMORY", "PRODUCTIVE", "WALL", "STARTS"]
    print_table(header, [_cells(row, unit) for row in rows])


def _cells(row: TrainingRow, unit: str) -> list[str]:
    rate = throughput(row, unit or "tokens")
    return [
        row.run,
        str(row.num_ranks),
        str(row.num_steps),
        f"{rate:,.0f}" if rate and rate >= 100 else f"{rate:.3g}" if rate else "-",
        f"{row.speed_up:.2f}x" if row.speed_up is not None else "-",
        _percent(row.efficiency),
        f"{1000 * row.step_p50_s:.1f} ms",
        _percent(row.data_wait_share),
        _percent(row.mfu),
        f"{row.memory_peak_bytes / 2**30:.2f} GiB",
        _percent(row.productive_share),
        render_short(row.wall_s),
        str(row.num_sessions),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
