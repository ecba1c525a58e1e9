"""Image: the container that nodes run in, and the steps that run on them before ranks start.

    images.pytorch("24.08-py3").pip_install(["einops", "./wheels/mine.whl"]).run("nvidia-smi").env(A="1")

An Image is frozen: each method returns another one. Nothing is fetched or run here. `windlass.agent.node`
runs the plain form of the steps on nodes. `render_dockerfile` writes the same steps as a Dockerfile. Each
step has its own folder on every node, so `check_packages` refuses pip options that install elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.records import to_json
from windlass.spec.work import ImageStep, PipStep, RunStep

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = r"(\s*\[[A-Za-z0-9._,\s-]*\])?"
_VERSION = r"(~=|===?|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+"
_VERSIONS = rf"\(?\s*{_VERSION}(\s*,\s*{_VERSION})*\s*,?\s*\)?"
_PACKAGE = re.compile(rf"{_NAME}{_EXTRAS}\s*({_VERSIONS}|@\s*\S+)?\s*(;.+)?\Z")
_ONE_EQUALS = re.compile(rf"({_NAME})=([0-9][^=]*)\Z")
_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_ELSEWHERE = ("-t", "--target", "--prefix", "--user", "--root", "--python", "--src")
_HINT = 'use pip_install(["numpy>=2", "./wheels/mine.whl", "-r", "requirements.txt"])'
_REF = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?"  # the host, which may have uppercase letters
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?\Z"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REF_HINT = "use NAME:TAG or HOST/NAME:TAG"
_ALSO = {
    "pip": "pip_install",
    "install": "pip_install",
    "run_bash": "run",
    "bash": "run",
    "set_env_vars": "env",
    "env_vars": "env",
    "from_registry": "from_docker",
}
_FOLDER = "/build"
_PIP = "python3 -m pip install --no-cache-dir"
_BESIDE = ("-r", "--requirement", "-c", "--constraint", "-f", "--find-links", "-e", "--editable")


def check_packages(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the arguments for pip. Raises SpecError for one that is not a package."""
    listed = [given] if isinstance(given, str) else _as_list(given)
    words: list[str] = []
    for item in listed:
        if not isinstance(item, str) or not item.strip() or "\0" in item:
            raise SpecError(f"invalid package {item!r:.80}", hint=_HINT)
        text = item.strip()
        words += shlex.split(text) if text.startswith("-") else [text]
    if not words:
        raise SpecError("pip_install requires at least one package", hint=_HINT)
    last = ""
    for word in words:
        _check_word(word, is_value=last.startswith("-") and "=" not in last)
        last = word
    return tuple(words)


def _as_list(given: object) -> list[object]:
    if isinstance(given, Iterable) and not isinstance(given, bytes | dict):
        return list(given)
    raise SpecError(f"packages must be a list of strings, not {type(given).__name__}", hint=_HINT)


def _check_word(word: str, *, is_value: bool) -> None:
    if _PASSWORD.search(word):
        # the argument is not shown, because errors end up in logs
        raise SpecError(
            "an address contains a password, which the plan and the Dockerfile would show",
            hint="set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL with a Secret of the Compute",
        )
    option = word.partition("=")[0]
    if option in _ELSEWHERE:
        raise SpecError(
            f"pip_install does not accept {option}: each step has its own folder on every node",
            hint="remove it",
        )
    if is_value or word.startswith("-") or _is_path(word) or _PACKAGE.match(word):
        return
    raise SpecError(
        f"invalid package {word!r:.120}: pip does not accept this name", hint=_guess(word)
    )


def _is_path(word: str) -> bool:
    ends = (".whl", ".tar.gz", ".zip")
    return word.startswith((".", "/", "git+", "http://", "https://", "file:")) or (
        word.partition("[")[0].endswith(ends) or ("/" in word and " " not in word)
    )


def _guess(word: str) -> str:
    if match := _ONE_EQUALS.match(word):
        return f"did you mean {match[1]}=={match[3]}?"
    parts = word.replace(",", " ").split()
    if len(parts) > 1 and all(_PACKAGE.match(part) for part in parts):
        return f"pass them separately: {parts}"
    return _HINT


@dataclass(frozen=True, slots=True)
class Image:
    """Container image of nodes, and steps that run before ranks start. Each method returns another Image.

    ref: the image's name, NAME:TAG or HOST/NAME:TAG (default: the setting).
    steps: steps to run on each node. `.pip_install` and `.run` add to them.
    variables: environment variables for steps and ranks. `.env` adds to them.
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
        """Return an Image for a name or an Image."""
        if isinstance(given, Image):
            return given
        if isinstance(given, str):
            return cls(given)
        raise SpecError(
            f"image must be a name or an Image, not {type(given).__name__}",
            hint='use image="NAME:TAG", or image=images.pytorch("24.08-py3")',
        )

    def pip_install(self, packages: str | Iterable[str]) -> Image:
        """Also install packages, after the steps so far.

        packages: a package or a list of them, as for `pip install`. Paths are relative to the project.
        """
        words = check_packages(packages)
        return replace(self, steps=(*self.steps, PipStep(packages=words)))

    def run(self, command: str | Iterable[str]) -> Image:
        """Also run a command, after the steps so far.

        command: a command line for `sh`, or a list of words, which are quoted.
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
                hint='use .env(NAME="value") or .env({"NAME": "value"})',
            )
        more = _check_variables({**(given or {}), **variables})
        return replace(self, variables={**self.variables, **more})

    def from_docker(self, ref: str) -> Image:
        """Return a copy of this Image with another base image.

        ref: name of the base image, NAME:TAG or HOST/NAME:TAG.
        """
        if not ref:
            raise SpecError("from_docker requires the name of an image", hint=_REF_HINT)
        return replace(self, ref=ref)

    def plain_steps(self) -> list[dict[str, Any]]:
        """Return the steps as JSON values, for agents."""
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
        raise SpecError(
            f"the name of an image must be a string, not {type(ref).__name__}", hint=_REF_HINT
        )
    if ref and not _REF.match(ref):
        hint = _REF_HINT
        if "://" in ref:
            hint = f"remove {ref.partition('://')[0]}://"
        elif ref != ref.lower() and _REF.match(ref.lower()):
            hint = "image names must be lowercase; only tags may contain uppercase letters"
        raise SpecError(f"invalid image name {ref!r:.120}", hint=hint)


def _check_step(step: object) -> ImageStep:
    if isinstance(step, PipStep | RunStep):
        return step
    raise SpecError(
        f"invalid image step {step!r:.80}",
        hint='add steps with .pip_install(["NAME"]) and .run("COMMAND")',
    )


def _check_command(command: object) -> str:
    if isinstance(command, list | tuple) and command and all(isinstance(w, str) for w in command):
        command = shlex.join(command)
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise SpecError(
            f"run takes a command as a string, not {command!r:.80}",
            hint='use .run("apt-get install -y git")',
        )
    return command.strip()


def _check_variables(given: Mapping[str, Any]) -> dict[str, str]:
    variables = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _VARIABLE.match(name):
            raise SpecError(
                f"invalid environment variable name {name!r}",
                hint="use letters, digits and underscores, not starting with a digit",
            )
        if name in names.SET_PER_RANK:
            raise SpecError(f"an image cannot set {name}, which Windlass sets for each rank")
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int | float)
            or "\0" in str(value)
        ):
            raise SpecError(
                f"the value of {name} must be a string or a number, not {type(value).__name__}",
                hint=f'use {name}="1"',
            )
        variables[name] = str(value)
    return variables


class Images:
    """Well-known images. Each includes Python, which the agent needs."""

    def pytorch(self, tag: str) -> Image:
        """Return NVIDIA's image of PyTorch, for example `images.pytorch("24.08-py3")`.

        tag: the image's tag.
        """
        return Image(f"nvcr.io/nvidia/pytorch:{_check_tag(tag, '24.08-py3')}")

    def ray(self, tag: str) -> Image:
        """Return the Ray project's image, for example `images.ray("2.40.0-py311")`.

        tag: the image's tag.
        """
        return Image(f"rayproject/ray:{_check_tag(tag, '2.40.0-py311')}")

    Ray = ray  # its name in Kubetorch

    def python(self, version: str) -> Image:
        """Return Python's slim image, for example `images.python("3.12")`.

        version: the version of Python.
        """
        return Image(f"python:{_check_tag(version, '3.12')}-slim")

    def debian(self) -> Image:
        """Return Debian with this process's version of Python, so that functions can be sent by value."""
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
            f"the tag {tag!r} must be a string, not a number",
            hint=f'write "{tag}", like "{example}"',
        )
    if not isinstance(tag, str) or not _TAG.match(tag):
        raise SpecError(f"invalid image tag {tag!r:.80}", hint=f'use a tag such as "{example}"')
    return tag


def render_dockerfile(image: Image) -> str:
    """Return the Dockerfile. `docker build` must run in the project's folder."""
    if not image.ref:
        raise SpecError(
            "this Image has no base image",
            hint='use images.pytorch("24.08-py3") or .from_docker("NAME:TAG")',
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
        lines.insert(1, "# nodes run commands in the project's folder: COPY the files they need")
    return "\n".join(lines) + "\n"


def _render(step: ImageStep) -> str:
    if isinstance(step, PipStep):
        return f"RUN {_PIP} {shlex.join(step.packages)}"
    if "\n" in step.command or step.command.rstrip().endswith("\\"):
        return f"RUN {json.dumps(['/bin/sh', '-c', step.command])}"
    return f"RUN {step.command}"


def _find_paths(step: ImageStep) -> list[str]:
    """Return the files of the project that the step's arguments make pip read."""
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
            f"the value of {name} has several lines, which a Dockerfile does not support",
            hint="set it on the Compute (env=) instead of on its Image",
        )
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{text}"'
