"""`windlass result`: what each rank of an ended job returned, raised or left undone."""

from __future__ import annotations

import click

from windlass.cli import rank_values
from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.client.jobs.find_jobs import find_job
from windlass.errors import SpecError, WaitTimeout
from windlass.observe.verdict import exit_code_of


@click.command()
@job_argument
@click.option("--rank", type=int, metavar="N", help="of one rank only, with its whole traceback")
@json_option
def result(job_text: str, rank: int | None, as_json: bool) -> int:
    """Print what each rank of JOB returned or raised; also of a job that failed.

    Nothing is unpickled: values are shown as their repr, or with --json as JSON where possible, in the form
    that `windlass run --json` prints.
    Exits 0 if the job succeeded, 1 if it failed, 3 if it could not start or its end is not known.
    """
    job = find_job(job_text, load_settings())
    status = job.status()
    if not status.phase.is_final:
        raise WaitTimeout(
            f"{job.id} is still {status.phase.value}",
            hint=f"windlass wait {job.id} && windlass result {job.id}",
        )
    if rank is not None and not 0 <= rank < status.num_ranks:
        raise SpecError(
            f"there is no rank {rank}", hint=f"{job.id} has ranks 0 to {status.num_ranks - 1}"
        )
    outcomes = job.outcomes()
    if as_json:
        print_json(rank_values.make_record(str(job.ref), status, outcomes, only=rank))
    else:
        for line in rank_values.render_lines(status, outcomes, only=rank):
            click.echo(line)
    rank_values.check_missing(outcomes if rank is None else outcomes[rank : rank + 1])
    return exit_code_of(status)
