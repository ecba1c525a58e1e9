"""`windlass image`: the Dockerfile of an Image's steps, or of the recipes.

Nodes skip the steps if their image was built from this Dockerfile. The command imports the file as
`windlass deploy` does, because the file's code creates the Image.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from windlass.cli.flags import json_option
from windlass.cli.show import print_json
from windlass.cli.verb_table import Verb
from windlass.client.compute.resources.image import Image, render_dockerfile
from windlass.errors import SpecError, WindlassError
from windlass.near_names import did_you_mean

RECIPES = "recipes"


@click.command(cls=Verb)
@click.argument("target", metavar="FILE.py[::NAME]|recipes")
@json_option
def image(target: str, as_json: bool) -> None:
    """Print the Dockerfile of an Image, or of the image of a Compute, in FILE.py.

    FILE.py is imported. NAME is the variable that holds the image. It is only needed if FILE.py has several
    images. `recipes` prints the Dockerfile for windlass.recipes, with both recipes at the paths
    that the guides use.

    Build the image in the folder of the project:

    \b
    windlass image train.py | docker build -f - -t NAME:TAG .
    """  # noqa: D301 - click needs the backspace
    if target == RECIPES:
        text = (files("windlass") / RECIPES / "Dockerfile").read_text(encoding="utf-8")
        print_json({"dockerfile": text}) if as_json else click.echo(text, nl=False)
        return
    file, _, name = target.partition("::")
    chosen = find_image(_import(Path(file)), name, file)
    text = render_dockerfile(chosen)
    if as_json:
        about = {"image": chosen.ref, "variables": dict(chosen.variables)}
        print_json({**about, "steps": chosen.plain_steps(), "dockerfile": text})
    else:
        click.echo(text, nl=False)


def find_image(variables: Mapping[str, Any], name: str, file: str) -> Image:
    """Return the Image that the named variable holds, or the only Image of the file without a name."""
    images = {key: image for key, value in variables.items() if (image := _image_of(value))}
    if name:
        if name in images:
            return images[name]
        if name in variables:
            kind = type(variables[name]).__name__
            raise SpecError(f"{name} in {file} is a {kind} without an image", hint=_list(images))
        hint = did_you_mean(name, images, _list(images))
        raise SpecError(f"{name!r} not found in {file}", hint=hint)
    several = list({id(image): image for image in images.values()}.values())
    if not several:
        raise SpecError(f"{file} has no Image and no Compute with one", hint=_list(images))
    if any(image != several[0] for image in several):
        raise SpecError(
            f"{file} has several images", hint=f"choose one: {file}::{next(iter(images))}"
        )
    return several[0]


def _image_of(value: object) -> Image | None:
    """Return the value itself if it is an Image, or the image of a Compute or of what runs on one."""
    if isinstance(value, type):
        return None
    for holder in (value, getattr(value, "compute", None)):
        given = holder if isinstance(holder, Image) else getattr(holder, "image", None)
        if isinstance(given, Image):
            return given
    return None


def _list(images: Mapping[str, Image]) -> str:
    if images:
        return f"available: {', '.join(images)}"
    return 'write one: image = windlass.images.pytorch("24.08-py3").pip_install(["NAME"])'


def _import(path: Path) -> dict[str, Any]:
    import runpy

    if not path.is_file():
        files = sorted(other.name for other in path.parent.glob("*.py"))
        hint = did_you_mean(path.name, files, "pass a Python file", show=path.parent.joinpath)
        raise SpecError(f"file not found: {path}", hint=hint)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        return runpy.run_path(str(path), run_name="__windlass__")
    except (WindlassError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SpecError(
            f"importing {path} raised {type(error).__name__}: {error}",
            hint=f"make `python {path}` work first; put code that must not run on import under "
            'if __name__ == "__main__":',
        ) from error
    finally:
        sys.path.pop(0)
