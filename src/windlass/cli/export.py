"""`windlass export`: the objects an engine would make, printed and not made."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.call import prepare_words
from windlass.cli.flags import given_flags, json_option, setting_options
from windlass.cli.show import print_json, print_yaml
from windlass.cli.words import TargetCommand, Words


@click.command(cls=TargetCommand, epilog="Words after TARGET go to it; after -- they all do.")
@setting_options
@json_option
def export(words: Words, as_json: bool, **options: Any) -> None:
    """Print what the engine would start for TARGET, as YAML documents; start nothing."""
    prepared = prepare_words(words, detach=True, flags=given_flags(options))
    documents = prepared.engine.render(prepared.plan)
    if as_json:
        print_json(documents)
    else:
        print_yaml(documents)
