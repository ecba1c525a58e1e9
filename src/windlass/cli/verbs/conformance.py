"""`windlass conformance`: runs the contract tests on one engine, and prints a table of cases."""

from __future__ import annotations

import sys
from collections import Counter

import click

from windlass import names
from windlass.cli.flags import json_option
from windlass.cli.show import print_json, shorten
from windlass.cli.verb_table import Verb
from windlass.client.terminal import clean, one_line, paint, print_notice, wants_color
from windlass.conformance.case_result import FAILED, PASSED, SKIPPED, CaseResult
from windlass.settings import read_settings_here

_COLORS = {PASSED: 32, FAILED: 31, SKIPPED: 33}
_MAX_REASON = 160


class _Table:
    """Table that prints each row when its case ends, because all cases together take minutes."""

    def __init__(self, *, as_json: bool) -> None:
        self.rows: list[CaseResult] = []
        self._as_json = as_json
        self._out = sys.stdout  # pytest replaces sys.stdout while it runs
        self._width = 0

    def begin(self, cases: list[str]) -> None:
        self._width = max(map(len, cases), default=0)
        print_notice(f"{len(cases)} cases")
        if not self._as_json and cases:
            header = f"{'CASE':<{self._width}}  RESULT   SECONDS  REASON"
            self._echo(paint(header, 1, color=wants_color(self._out)))

    def add(self, row: CaseResult) -> None:
        self.rows.append(row)
        if not self._as_json:
            word = paint(f"{row.result:<7}", _COLORS[row.result], color=wants_color(self._out))
            reason = shorten(one_line(row.reason), _MAX_REASON)
            line = f"{row.case:<{self._width}}  {word}  {row.seconds:>7.1f}  {reason}"
            self._echo(line.rstrip())

    def _echo(self, line: str) -> None:
        click.echo(line, file=self._out, color=True)
        self._out.flush()


@click.command(cls=Verb)
@click.option("-e", "--engine", metavar="NAME", help="Engine to test (default: from the settings)")
@click.option(
    "--image",
    metavar="NAME:TAG",
    help="Image of the pods, with Python and torch (default: from the settings)",
)
@click.option(
    "--namespace", metavar="NAME", help="Namespace without jobs (default: a new one for the run)"
)
@click.option("--context", metavar="NAME", help="Kubeconfig context (default: the current context)")
@click.option(
    "--shared-claim",
    "claim",
    metavar="NAME",
    default="",
    help="ReadWriteMany claim in the namespace (default: a new one of the default storage class)",
)
@click.option(
    "-k", "keyword", metavar="EXPR", default="", help="Run only cases with names that match"
)
@click.option(
    "--all", "runs_all", is_flag=True, help="Run cases that hardly depend on the engine too"
)
@json_option
def conformance(
    claim: str, keyword: str, runs_all: bool, as_json: bool, **flags: str | None
) -> int:
    """Run the contract tests on an engine, to check what Windlass promises on your own cluster.

    Needs pytest: `pip install 'windlass[conformance]'`. Exits 1 if a case failed.
    """
    from windlass.conformance.case_run import check_pytest, run_cases

    check_pytest()
    table = _Table(as_json=as_json)
    try:
        run_cases(
            read_settings_here(flags),
            keyword=keyword,
            runs_all=runs_all,
            claim=claim,
            begin=table.begin,
            report_result=table.add,
        )
    finally:
        if as_json:
            print_json(table.rows)
        _sum_up(table.rows)
    has_failed = any(row.result == FAILED for row in table.rows)
    return names.EXIT_JOB_FAILED if has_failed else names.EXIT_OK


def _sum_up(rows: list[CaseResult]) -> None:
    """Print the details of failed cases, then the number of cases by result."""
    for row in rows:
        if row.detail:
            sys.stderr.write(f"\n--- {row.case}\n{clean(row.detail, color=False)}\n")
    if rows:
        counts = Counter(row.result for row in rows)
        words = [f"{counts[result]} {result}" for result in _COLORS if counts[result]]
        print_notice(f"{', '.join(words)} in {sum(row.seconds for row in rows):.0f} s")
