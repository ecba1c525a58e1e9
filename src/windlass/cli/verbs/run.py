"""`windlass run`: start a job, show it, and report how it ended.

Without `--detach`, the job lives as long as this process holds its lease. `cli.prepare` turns the words into
a job, and `client.jobs.live_view` shows the job while it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass import names
from windlass.cli.error_output import say_verdict
from windlass.cli.flags import given_flags, json_option, setting_options
from windlass.cli.prepare import SplitWords, TargetCommand, prepare_words
from windlass.cli.show import print_json, print_yaml, render_span
from windlass.cli.verb_table import close_stdout
from windlass.client.jobs.job import Interrupts, Job
from windlass.client.jobs.run import Prepared
from windlass.client.terminal import print_notice
from windlass.errors import SpecError, count_noun
from windlass.settings import Settings, read_settings_here
from windlass.spec.work import Function
from windlass.wire.status import JobStatus, Phase

if TYPE_CHECKING:
    from windlass.client.jobs.live_view import View

_PLACE = ("engine", "namespace", "context")


@click.command(cls=TargetCommand)
@setting_options
@click.option("--detach", is_flag=True, help="Start the job, print its address and return")
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing")
@click.option("--quiet", "-q", is_flag=True, help="Hide logs and progress")
@json_option
def run(
    words: SplitWords,
    detach: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run TARGET on every rank.

    TARGET is script.py, file.py::function, -m module or any command.
    """
    try:
        prepared = prepare_words(words, detach=detach, flags=given_flags(options))
    except SpecError:
        script = "" if detach or dry_run or as_json else _find_declaring(words, options)
        if not script:
            raise
        return _deploy(script, given_flags(options))
    if dry_run:
        if as_json:
            print_json(prepared.plan)
        else:
            print_yaml([prepared.plan])
        return names.EXIT_OK
    if detach:
        job = prepared.start()
        if not quiet:
            _print_start(prepared)
        _show_detached(job, as_json=as_json, quiet=quiet)
        return names.EXIT_OK
    with Interrupts() as interrupts:
        job = prepared.start()
        interrupts.watch(job)
        if not quiet:
            _print_start(prepared)
        view = _make_view(quiet=quiet, as_json=as_json)
        status = _follow(job, view, interrupts, prepared.settings)
    _show_end(job, status, prepared, quiet=quiet, as_json=as_json)
    if interrupts.was_interrupted and status.phase is not Phase.SUCCEEDED:
        return names.EXIT_INTERRUPTED
    from windlass.observe.explain import exit_code_of

    return exit_code_of(status)


def _find_declaring(words: SplitWords, options: dict[str, Any]) -> str:
    """Return the script if it only declares apps, unless flags other than its place are given."""
    from windlass.client.jobs.source_analysis import only_declares

    others = {name: value for name, value in given_flags(options).items() if name not in _PLACE}
    *launcher, script = (*words.target, *words.rest) or ("",)
    if any(others.values()) or launcher not in ([], ["python"], ["python3"]):
        return ""
    path = Path(script)
    return script if path.suffix == ".py" and path.is_file() and only_declares(path) else ""


def _deploy(script: str, flags: dict[str, Any]) -> int:
    from windlass.cli.verbs.deploy import deploy_script, set_place

    print_notice(
        f"{script} only declares app(...), so it is deployed, as with `windlass deploy {script}`"
    )
    set_place(read_settings_here(flags))
    deploy_script(script)
    return names.EXIT_OK


def _print_start(prepared: Prepared) -> None:
    print_notice(_render_start(prepared))
    for note in prepared.notes:
        print_notice(note)


def _render_start(prepared: Prepared) -> str:
    plan = prepared.plan
    num_nodes, num_procs = len(plan.nodes), plan.nodes[0].num_ranks
    size = f"{count_noun(num_nodes, 'node')} x {count_noun(num_procs, 'proc')}"
    return f"{plan.job_id} on {plan.engine} ({prepared.settings.origin('engine')}), {size}"


def _show_detached(job: Job, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json({"job_id": job.id, "ref": str(job.ref)})
    else:
        click.echo(str(job.ref))
    if not quiet:
        print_notice(
            f"{job.id} is running in the background. Run `windlass attach {job.id}` to watch it or "
            f"`windlass cancel {job.id}` to stop it."
        )


def _make_view(*, quiet: bool, as_json: bool) -> View:
    # imported here and below, after the nodes have been started, to start them sooner
    from windlass.client.jobs.live_view import LiveView, QuietView

    # stdout holds only the JSON document
    return QuietView() if quiet else LiveView(out=sys.stderr if as_json else None)


def _follow(job: Job, view: View, interrupts: Interrupts, settings: Settings) -> JobStatus:
    from windlass.client.compute.nodes.find_computes import explain_by
    from windlass.client.jobs.live_view import follow

    try:
        return follow(job, view, interrupts=interrupts, explain=explain_by(job.ref, settings))
    except BrokenPipeError:
        job.cancel(why="the output of its client was closed")
        close_stdout()
        raise click.exceptions.Exit(names.EXIT_JOB_FAILED) from None


def _show_end(
    job: Job, status: JobStatus, prepared: Prepared, *, quiet: bool, as_json: bool
) -> None:
    from windlass.cli.verbs import result
    from windlass.observe.explain import render_timeline

    outcomes = job.outcomes()
    if as_json:
        print_json(result.make_record(str(job.ref), status, outcomes))
    elif status.phase is Phase.SUCCEEDED and isinstance(prepared.plan.work, Function):
        for line in result.render_lines(status, outcomes):
            click.echo(line)
    sys.stdout.flush()
    if status.phase is not Phase.SUCCEEDED:
        say_verdict(status)
    elif not quiet:
        sys.stderr.write(f"{_render_success(status)}\n{render_timeline(status)}\n")
    result.check_missing(outcomes)


def _render_success(status: JobStatus) -> str:
    took = render_span(status.created_at_s, status.ended_at_s)
    ranks = count_noun(status.num_ranks, "rank")
    restarts = f", after {count_noun(status.attempt, 'restart')}" if status.attempt else ""
    return f"✓ job {status.job_id} succeeded in {took}: {ranks} done{restarts}"
