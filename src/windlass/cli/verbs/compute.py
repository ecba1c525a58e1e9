"""`windlass compute`: list computes and their calls, and resize or end them."""

from __future__ import annotations

import sys
from typing import Any

import click

from windlass import records
from windlass.cli.flags import json_option, place_flags, place_options
from windlass.cli.show import print_json, print_table, render_short, shorten
from windlass.cli.verb_table import NearGroup
from windlass.client.compute.nodes.find_computes import (
    FoundCompute,
    LiveCompute,
    end_job,
    find_living,
    list_living,
    look,
    search_targets,
)
from windlass.client.compute.nodes.live_nodes import LiveNodes
from windlass.client.terminal import one_line, print_notice
from windlass.errors import SpecError, count_noun

_WIDEST = 40


@click.group(cls=NearGroup, invoke_without_command=True)
@click.pass_context
def compute(ctx: click.Context) -> None:
    """List, end and resize computes, the warm nodes that `Compute` starts and calls run on."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@compute.command(short_help="List running computes.")
@place_options
@json_option
def ls(as_json: bool) -> None:
    """List running computes.

    Searches this machine and the place where a Compute would start now.
    """
    computes = [living for where in search_targets(place_flags()) for living in list_living(where)]
    if as_json:
        print_json([_make_record(living) for living in computes])
        return
    header = ("NAME", "ENGINE", "NODES", "STATE", "IDLE", "TTL", "CALLS", "DEPLOYED", "ID")
    print_table(header, [_make_row(living) for living in computes])
    for living in computes:
        if living.why:
            print_notice(f"{living.qualified_name}: {living.why}")
    if not computes:
        print_notice(
            "no compute is running; start one with windlass.Compute(...) in Python or windlass deploy"
        )


def _make_row(living: LiveCompute) -> tuple[str, ...]:
    here = "?" if living.num_here is None else living.num_here
    place = f"{living.ref.engine}/{living.ref.place}" if living.ref.place else living.ref.engine
    waiting = f", {living.num_waiting} waiting" if living.num_waiting else ""
    return (
        shorten(one_line(living.qualified_name), _WIDEST),
        place,
        f"{here}/{living.num_nodes}",
        f"{living.state}{waiting}",
        render_short(living.idle_s) if living.state == "idle" else "-",
        _render_ttl(living),
        "-" if living.num_calls is None else str(living.num_calls),
        shorten(one_line(", ".join(living.deployed)), _WIDEST) or "-",
        living.ref.job_id,
    )


def _render_ttl(living: LiveCompute) -> str:
    if living.num_calls is None:  # the compute did not answer
        return "-"
    return "none" if living.ttl_s is None else render_short(living.ttl_s)


def _make_record(living: LiveCompute) -> dict[str, Any]:
    plain: dict[str, Any] = records.to_json(living)
    engine = {"engine": living.ref.engine, "namespace": living.ref.place}
    return {**plain, "ref": str(living.ref), "job_id": living.ref.job_id, **engine}


@compute.command(short_help="List the last calls on a compute.")
@click.argument("text", metavar="NAME")
@place_options
@json_option
def calls(text: str, as_json: bool) -> None:
    """List the last calls on the compute NAME, newest first.

    Pass the ID of a call to `windlass logs`, `result` or `cancel`.
    """
    living = look(find_living(text, search_targets(place_flags())))
    newest = list(reversed(living.calls))
    if as_json:
        print_json(newest)
        return
    print_table(
        ("ID", "FUNCTION", "STATE"),
        [(call["id"], shorten(one_line(call["name"]), _WIDEST), call["state"]) for call in newest],
    )
    if not newest:
        print_notice(living.why or f"no calls on {living.name} yet")


@compute.command(short_help="End computes with their calls and nodes.")
@click.argument("texts", metavar="NAME...", nargs=-1)
@click.option(
    "--all",
    "-a",
    "is_all",
    is_flag=True,
    help="End all of your computes that `windlass compute ls` shows",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation")
@place_options
@json_option
def rm(texts: tuple[str, ...], is_all: bool, yes: bool, as_json: bool) -> None:
    """End each compute NAME with its calls, ranks and nodes.

    Prints the IDs of the ended computes.
    """
    wheres = search_targets(place_flags())
    if is_all == bool(texts):
        raise SpecError("no compute given", hint="run `windlass compute rm NAME...`, or pass --all")
    if is_all:
        there = [(where, living) for where in wheres for living in list_living(where)]
        computes = [
            FoundCompute(where=where, ref=living.ref, name=living.name)
            for where, living in there
            if not living.owner
        ]
        for _, living in there:
            if living.owner:
                print_notice(
                    f"{living.qualified_name} is not yours and is kept; end it with "
                    f"`windlass compute rm {living.qualified_name}`"
                )
    else:  # an unknown name raises before any compute is ended
        computes = [find_living(text, wheres) for text in texts]
    if is_all and computes and not yes:
        _confirm(computes)
    for one in {str(one.ref): one for one in computes}.values():
        end_job(one.where, one.ref)
        if not as_json:
            click.echo(one.ref.job_id)
    if as_json:
        print_json(sorted({one.ref.job_id for one in computes}))
    if not computes:
        print_notice("no compute is running")


def _confirm(computes: list[FoundCompute]) -> None:
    names = ", ".join(f"{one.name} ({one.ref})" for one in computes)
    if not sys.stdin.isatty():
        raise SpecError(f"this would end {names}", hint="add --yes to end them without asking")
    if not click.confirm(f"end {names}?", err=True):
        raise click.Abort


@compute.command(short_help="Change the number of nodes of a compute.")
@click.argument("text", metavar="NAME")
@click.argument("num_nodes", metavar="N", type=click.IntRange(min=1))
@place_options
@json_option
def scale(text: str, num_nodes: int, as_json: bool) -> None:
    """Resize the compute NAME to N nodes. The last nodes are removed first, and node 0 stays.

    Returns while new nodes are still starting. They join while calls run. New nodes on this machine get no
    secrets, because secrets are never stored. If the compute has secrets, call .distribute(workers=N) in
    Python instead.
    """
    living = find_living(text, search_targets(place_flags()))
    before = look(living)
    if num_nodes < before.num_nodes and before.state == "at work":
        raise SpecError(
            f"cannot scale {living.name}: its running calls would lose nodes",
            hint=f"wait for them (`windlass compute ls`), or run `windlass compute rm {living.name}`",
        )
    nodes = LiveNodes(living.name, living.where)
    nodes.adopt(living.ref)
    nodes.scale(num_nodes)
    if as_json:
        print_json({"ref": str(living.ref), "num_nodes": num_nodes, "before": before.num_nodes})
    elif before.num_nodes == num_nodes:
        print_notice(f"{living.name} has {count_noun(num_nodes, 'node')} already")
