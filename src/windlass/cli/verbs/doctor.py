"""`windlass doctor`: what this machine or a cluster has, what it lacks, and how to get it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

from windlass import names, records
from windlass.cli.flags import json_option
from windlass.cli.show import print_json
from windlass.cli.verb_table import Verb
from windlass.client.terminal import clean, one_line, paint, print_notice, wants_color
from windlass.engines.engine_table import check_engine_name, has_pods
from windlass.errors import SpecError
from windlass.observe.doctor import Check, check_all
from windlass.settings import Settings, read_settings_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.kube.client.access import Right

_COLORS = {"ok": 32, "warn": 33, "missing": 31}


@click.command(cls=Verb)
@click.option(
    *("-e", "--engine"),
    metavar="NAME",
    help="Check only what this engine runs on, or A,B with --role",
)
@click.option("--context", metavar="NAME", help="Kubeconfig context (default: the current context)")
@click.option(
    "--namespace", metavar="NAME", help="Namespace (default: the namespace of the context)"
)
@click.option(
    "--image", metavar="NAME:TAG", help="Image of the pods of --deep (default: from the settings)"
)
@click.option(
    "--deep", is_flag=True, help="Start two small pods to check DNS, ports, bandwidth and versions"
)
@click.option("--role", is_flag=True, help="Print the Role that users of the engines need, as YAML")
@json_option
def doctor(as_json: bool, deep: bool, role: bool, **flags: str | None) -> int:
    """Check this machine and the Python of the ranks.

    With -e kubernetes, check the cluster and your rights in it instead. Exits 3 if something is missing that
    every job needs.
    """
    settings = read_settings_here(flags)
    if role:
        _print_role(settings, as_json=as_json)
        return names.EXIT_OK
    checks = []
    for check in _run_checks(settings, deep=deep, only_engine=flags["engine"] is not None):
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        print_json([records.to_json(check) for check in checks])
    else:
        _show_more(checks)
    fatal = [check.name for check in checks if check.is_fatal]
    if fatal:
        print_notice(f"jobs cannot run without: {', '.join(fatal)}")
    return names.EXIT_ENGINE if fatal else names.EXIT_OK


def _run_checks(settings: Settings, *, deep: bool, only_engine: bool) -> Iterator[Check]:
    """Check this machine, and also the cluster of the engine. With `only_engine`, check only one of them."""
    check_engine_name(settings.engine)
    is_here = not has_pods(settings.engine, settings)
    if deep and is_here:
        raise SpecError("--deep needs a cluster", hint="run `windlass doctor -e kubernetes --deep`")
    if is_here or not only_engine:
        yield from check_all(settings)
    if not is_here:
        from windlass.observe.doctor_kubernetes import check_cluster

        yield from check_cluster(settings, deep=deep)


def _print_role(settings: Settings, *, as_json: bool) -> None:
    """Print the Role of the engines, for an admin who may grant it. No cluster is contacted."""
    import yaml

    from windlass.kube.client.access import render_role

    engines = [name.strip() for name in settings.engine.split(",")]
    text = render_role({name: _find_rights(name) for name in engines}, settings.namespace)
    if as_json:
        print_json(yaml.safe_load(text))
    else:
        click.echo(text, nl=False)


def _find_rights(engine: str) -> Sequence[Right]:
    from windlass.engines.engine_table import find_dialect
    from windlass.engines.exports.statefulset import RIGHTS, StatefulSetExport

    check_engine_name(engine)
    if engine == StatefulSetExport.name:
        return RIGHTS
    dialect = find_dialect(engine)
    if dialect is None:
        raise SpecError(
            f"the engine {engine} does not need a Role",
            hint="run `windlass doctor -e kubernetes --role`",
        )
    return dialect.rights


def _show(check: Check) -> None:
    state = paint(f"{check.state:<7}", _COLORS[check.state], color=wants_color(sys.stdout))
    click.echo(f"{state}  {check.name:<15}  {one_line(check.found)}", color=True)
    if check.hint:
        click.echo(f"{'':<7}  {'':<15}  -> {one_line(check.hint)}")
    sys.stdout.flush()


def _show_more(checks: list[Check]) -> None:
    """Print the documents for an admin as one YAML stream, below all checks so that it can be copied."""
    documents = [clean(check.more, color=False) for check in checks if check.more]
    if documents:
        click.echo("\n" + "---\n".join(documents), nl=False)
