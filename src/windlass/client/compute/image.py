"""Image: what nodes run in, and what is done on them before ranks start. And `images`, by well-known names.

    images.pytorch("24.08-py3").pip_install(["einops", "./wheels/mine.whl"]).run("nvidia-smi").env(A="1")

Frozen: each method returns another Image. Pure: nothing is fetched or run here; `agent.node.image_steps`
runs the plain form of the steps, and `client.compute.dockerfile` writes the Dockerfile of the same steps.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from windlass import names
from windlass.client.compute.pip_packages import check_packages
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.records import to_json
from windlass.spec.image_step import ImageStep, PipStep, RunStep

_REF = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?"  # the host, which may have large letters
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?\Z"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REF_HINT = "write NAME:TAG, or HOST/NAME:TAG"
_ALSO = {
    "pip": "pip_install",
    "install": "pip_install",
    "run_bash": "run",
    "bash": "run",
    "set_env_vars": "env",
    "env_vars": "env",
    "from_registry": "from_docker",
}


@dataclass(frozen=True, slots=True)
class Image:
    """What nodes run in, and what is done on them before ranks start. Each method returns another Image.

    ref: the image's name, NAME:TAG or HOST/NAME:TAG; empty: that of the settings.
    steps: what to do on each node; `.pip_install` and `.run` add to it.
    variables: environment variables for steps and ranks; `.env` adds to it.
    """

    ref: str = ""
    _: KW_ONLY
    steps: tuple[ImageStep, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_ref(self.ref)
        object.__setattr__(self, "steps", tuple(_check_step(step) for step in self.steps))
        object.__setattr__(self, "variables", _check_variables(self.variables))

    @classmethod
    def read(cls, given: str | Image) -> Image:
        """An Image from what a user gave for one."""
        if isinstance(given, Image):
            return given
        if isinstance(given, str):
            return cls(given)
        raise SpecError(
            f"an image is a name or an Image, not {type(given).__name__}",
            hint='image="NAME:TAG", or image=images.pytorch("24.08-py3")',
        )

    def pip_install(self, packages: str | Iterable[str]) -> Image:
        """Also install packages, after the steps so far.

        packages: a package or a list of them, as `pip install` takes them; paths are seen from the project.
        """
        words = check_packages(packages)
        return replace(self, steps=(*self.steps, PipStep(packages=words)))

    def run(self, command: str | Iterable[str]) -> Image:
        """Also run a command, after the steps so far.

        command: a line for `sh`, or a list of words, which are quoted.
        """
        return replace(self, steps=(*self.steps, RunStep(command=_check_command(command))))

    def env(self, given: Mapping[str, Any] | None = None, /, **variables: Any) -> Image:
        """Also set environment variables for steps and ranks.

        given: the variables as a dict.
        variables: the variables as keywords.
        """
        if given is not None and not isinstance(given, Mapping):
            raise SpecError(
                f"env takes a dict or keywords, not {type(given).__name__}",
                hint='.env(NAME="value") or .env({"NAME": "value"})',
            )
        more = _check_variables({**(given or {}), **variables})
        return replace(self, variables={**self.variables, **more})

    def from_docker(self, ref: str) -> Image:
        """The same steps on another image.

        ref: the other image's name, NAME:TAG or HOST/NAME:TAG.
        """
        if not ref:
            raise SpecError("from_docker needs the name of an image", hint=_REF_HINT)
        return replace(self, ref=ref)

    def plain_steps(self) -> list[dict[str, Any]]:
        """The steps as JSON: what agents read."""
        return [to_json(step) for step in self.steps]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(_no_method("Image", name, _METHODS, _ALSO))


_METHODS = ("pip_install", "run", "env", "from_docker")


def _no_method(owner: str, name: str, known: Iterable[str], also: Mapping[str, str]) -> str:
    return f"{owner} has no {name!r}; {did_you_mean(also.get(name, name), known, alike=0.5)}"


def _check_ref(ref: str) -> None:
    if not isinstance(ref, str):
        raise SpecError(f"an image's name is text, not {type(ref).__name__}", hint=_REF_HINT)
    if ref and not _REF.match(ref):
        hint = _REF_HINT
        if "://" in ref:
            hint = f"leave out {ref.partition('://')[0]}://"
        elif ref != ref.lower() and _REF.match(ref.lower()):
            hint = "names of images have small letters only; tags may have large ones"
        raise SpecError(f"{ref!r:.120} cannot be the name of an image", hint=hint)


def _check_step(step: object) -> ImageStep:
    if isinstance(step, PipStep | RunStep):
        return step
    raise SpecError(
        f"a step of an image cannot be {step!r:.80}",
        hint='add steps with .pip_install(["NAME"]) and .run("COMMAND")',
    )


def _check_command(command: object) -> str:
    if isinstance(command, list | tuple) and command and all(isinstance(w, str) for w in command):
        command = shlex.join(command)
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise SpecError(
            f"run needs a command as text, not {command!r:.80}",
            hint='.run("apt-get install -y git")',
        )
    return command.strip()


def _check_variables(given: Mapping[str, Any]) -> dict[str, str]:
    variables = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _VARIABLE.match(name):
            raise SpecError(
                f"{name!r} is not a name for an environment variable",
                hint="letters, digits and _, not starting with a digit",
            )
        if name in names.SET_PER_RANK:
            raise SpecError(f"{name} is set for each rank, so an image cannot set it")
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int | float)
            or "\0" in str(value)
        ):
            raise SpecError(
                f"the value of {name} must be text or a number, not {type(value).__name__}",
                hint=f'{name}="1"',
            )
        variables[name] = str(value)
    return variables


class Images:
    """Images by well-known names. Each has Python, which the agent needs."""

    def pytorch(self, tag: str) -> Image:
        """NVIDIA's image of PyTorch: pytorch("24.08-py3").

        tag: the image's tag.
        """
        return Image(f"nvcr.io/nvidia/pytorch:{_check_tag(tag, '24.08-py3')}")

    def ray(self, tag: str) -> Image:
        """The Ray project's image: ray("2.40.0-py311").

        tag: the image's tag.
        """
        return Image(f"rayproject/ray:{_check_tag(tag, '2.40.0-py311')}")

    Ray = ray  # as Kubetorch has it

    def python(self, version: str) -> Image:
        """Python's own slim image: python("3.12").

        version: the version of Python.
        """
        return Image(f"python:{_check_tag(version, '3.12')}-slim")

    def debian(self) -> Image:
        """Debian with the version of Python that runs here, so that functions can travel by value."""
        return Image("python:{}.{}-slim-bookworm".format(*sys.version_info))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        also = {"Debian": "debian", "nvidia": "pytorch", "torch": "pytorch", "ubuntu": "debian"}
        raise AttributeError(_no_method("images", name, _IMAGES, also))


_IMAGES = ("pytorch", "ray", "python", "debian")
images = Images()


def _check_tag(tag: object, example: str) -> str:
    if isinstance(tag, float | int) and not isinstance(tag, bool):
        raise SpecError(
            f"a tag is text, and {tag!r} is a number", hint=f'in quotes: "{tag}", like "{example}"'
        )
    if not isinstance(tag, str) or not _TAG.match(tag):
        raise SpecError(f"{tag!r:.80} cannot be the tag of an image", hint=f'write "{example}"')
    return tag
