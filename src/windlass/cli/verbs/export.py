"""`windlass export`: prints the objects that an engine would create.

Private keys are omitted unless the user asks for them, because exports end up in repositories.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from windlass import records
from windlass.cli.flags import export_options, given_flags, json_option
from windlass.cli.prepare import SplitWords, TargetCommand, prepare_words
from windlass.cli.show import print_json
from windlass.client.jobs.run import Prepared
from windlass.client.terminal import print_notice
from windlass.engines.engine_table import only_exports
from windlass.engines.protocol import Renderer
from windlass.errors import SpecError
from windlass.kube.objects.manifests import first_piece
from windlass.settings import start_folder


@click.command(cls=TargetCommand)
@export_options
@click.option(
    "--plain",
    is_flag=True,
    help="Print the engine's own kind of object with torchrun as launcher, without Windlass",
)
@click.option(
    "--operator",
    "version",
    default="",
    metavar="X.Y",
    help="Version of the operator, for --plain (default: the newest)",
)
@click.option(
    "--split",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write train-rdzv.yaml and stateful-set.yaml into DIR, for -e statefulset only",
)
@click.option("--with-keys", is_flag=True, help="Include private keys")
@json_option
def export(
    words: SplitWords,
    plain: bool,
    version: str,
    split: Path | None,
    with_keys: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the objects that the engine would create for TARGET, as YAML.

    Nothing is started. TARGET is script.py, file.py::function, -m module or any command.
    """
    prepared = prepare_words(words, detach=True, flags=given_flags(options))
    is_plain_already = only_exports(prepared.engine.name)
    wants_job = plain and not is_plain_already
    documents = (
        _render_plain(prepared, version) if wants_job else _render(prepared, with_keys=with_keys)
    )
    if not with_keys:
        documents = leave_out_keys(documents)
    if split is not None:
        files = _write_split(prepared.engine, documents, split)
        print_json(files) if as_json else click.echo("\n".join(files))
        return
    if as_json:
        print_json(documents)
        return
    click.echo(render_manifests(documents), nl=False)


def _render(prepared: Prepared, *, with_keys: bool) -> list[dict[str, Any]]:
    engine, plan = prepared.engine, prepared.plan
    documents = engine.render(
        plan, payload=prepared.payload, bundle=prepared.bundle, with_keys=with_keys
    )
    if "keys" not in engine.can:
        return documents
    if not with_keys:
        print_notice(
            "private keys are omitted, so this will not run; add --with-keys to include them"
        )
        return documents
    held = {name for document in documents for name in document.get("data", {})}
    for wanted in plan.inputs:
        if first_piece(wanted.name) not in held:
            raise SpecError(
                f"{wanted.name} is too large for an export: {wanted.size_bytes:,} bytes",
                hint="put the code into the image: --in-image /app/train.py; or use `windlass run`",
            )
    return documents


def _write_split(engine: Renderer, documents: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Write the documents into several files, and return their paths."""
    from windlass.engines.exports.statefulset import StatefulSetExport, split_documents

    if not isinstance(engine, StatefulSetExport):
        raise SpecError(
            f"--split only works with the engine statefulset, not {engine.name}",
            hint="add -e statefulset, or omit --split and redirect the output to a file",
        )
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, own in split_documents(documents).items():
            (folder / name).write_text(render_manifests(own), encoding="utf-8")
            paths.append(str(folder / name))
    except OSError as error:
        raise SpecError(
            f"cannot write to {folder}: {error.strerror or error}", hint="choose another folder"
        ) from error
    return paths


def render_manifests(documents: Sequence[dict[str, Any]]) -> str:
    """Render documents as YAML. Keys keep their order, and texts of several lines are literal blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    plain = [records.to_json(document) for document in documents]
    return str(yaml.dump_all(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100))


def _render_plain(prepared: Prepared, version: str) -> list[dict[str, Any]]:
    from windlass.engines.exports.plain_export import load_plain, read_solo
    from windlass.kube.objects.torchrun_pods import Rendezvous, unwrap_plan

    if prepared.plan.pod is None:
        raise SpecError(
            f"--plain needs an engine that runs pods, not {prepared.plan.engine}",
            hint="add -e kubernetes",
        )
    make_plain = load_plain(prepared.plan.engine, version)
    settings = prepared.settings
    rendezvous = Rendezvous(backend=settings.rdzv_backend, endpoint=settings.rdzv_endpoint)
    plan, flags = unwrap_plan(prepared.plan)
    script = read_solo(plan, start_folder())
    return make_plain(plan, script=script, rendezvous=rendezvous, flags=flags)


def leave_out_keys(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the documents without private keys, and print what was left out."""
    kept = []
    left_out: list[str] = []
    for document in documents:
        if document.get("kind") == "Secret":
            data = document.get("data", {})
            keys = [name for name, value in data.items() if _is_private(name, value)]
            left_out += keys
            data = {name: value for name, value in data.items() if name not in keys}
            document = {**document, "data": data}
        kept.append(document)
    if left_out:
        print_notice(
            f"omitted: {', '.join(left_out)}; pods will not start without them; "
            "add --with-keys to include them"
        )
    return kept


def _is_private(name: str, value: str) -> bool:
    if name.endswith(".key"):
        return True
    try:
        return b"PRIVATE KEY-----" in base64.b64decode(value)
    except (binascii.Error, ValueError):
        return False
