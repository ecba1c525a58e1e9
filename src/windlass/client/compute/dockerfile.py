"""The Dockerfile of an Image's steps: what nodes do at their start, done once. Pure."""

from __future__ import annotations

import json
import shlex

from windlass.client.compute.image import Image
from windlass.errors import SpecError
from windlass.spec.image_step import ImageStep, PipStep, RunStep

_FOLDER = "/build"
_PIP = "python3 -m pip install --no-cache-dir"
_BESIDE = ("-r", "--requirement", "-c", "--constraint", "-f", "--find-links", "-e", "--editable")


def render_dockerfile(image: Image) -> str:
    """The text for `docker build`, to be run in the project's folder."""
    if not image.ref:
        raise SpecError(
            "this Image names no image to start from",
            hint='images.pytorch("24.08-py3"), or .from_docker("NAME:TAG")',
        )
    lines = [f"FROM {image.ref}"]
    lines += [f"ENV {name}={_quote(name, value)}" for name, value in image.variables.items()]
    copied = [path for step in image.steps for path in _find_paths(step)]
    if copied or any(isinstance(step, RunStep) for step in image.steps):
        lines.append(f"WORKDIR {_FOLDER}")
    seen: set[str] = set()
    for step in image.steps:
        for path in _find_paths(step):
            if path not in seen:
                seen.add(path)
                lines.append(f"COPY {json.dumps([path, f'{_FOLDER}/{path}'])}")
        lines.append(_render(step))
    if any(isinstance(step, RunStep) for step in image.steps):
        lines.insert(
            1, "# on a node commands run in the project's folder: COPY what they need of it"
        )
    return "\n".join(lines) + "\n"


def _render(step: ImageStep) -> str:
    if isinstance(step, PipStep):
        return f"RUN {_PIP} {shlex.join(step.packages)}"
    if "\n" in step.command or step.command.rstrip().endswith("\\"):
        return f"RUN {json.dumps(['/bin/sh', '-c', step.command])}"
    return f"RUN {step.command}"


def _find_paths(step: ImageStep) -> list[str]:
    """Files of the project that pip is told to read."""
    if not isinstance(step, PipStep):
        return []
    paths, last = [], ""
    for word in step.packages:
        option, equals, value = word.partition("=")
        if word.startswith("-"):
            text = value if equals and option in _BESIDE else ""
        elif last in _BESIDE or (not last.startswith("-") and _is_local(word)):
            text = word
        else:
            text = ""
        last = word
        if text and "://" not in text and not text.startswith("/"):
            paths.append(text.partition("[")[0].removeprefix("./") or ".")
    return paths


def _is_local(word: str) -> bool:
    bare = word.partition("[")[0]
    return "://" not in word and (
        bare.startswith(".") or bare.endswith((".whl", ".tar.gz", ".zip")) or "/" in bare
    )


def _quote(name: str, value: str) -> str:
    if "\n" in value or "\r" in value:
        raise SpecError(
            f"the value of {name} has several lines, which a Dockerfile cannot hold",
            hint="set it on the Compute (env=) instead of on its Image",
        )
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{text}"'
