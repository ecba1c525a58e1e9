"""Table of plain exports, which `export --plain` prints as documents that do not need Windlass.

Each engine's documents use its kind of object and its own launcher. Such an export can contain one
script, which this module reads. A script that imports modules from its folder is rejected. All other
code must be in the image.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any, Protocol

from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import MAX_SCRIPT_BYTES, Rendezvous
from windlass.plan.plan import Plan
from windlass.spec.work import Module, Script

_PLAIN = {
    "kubernetes": "windlass.engines.exports.torchrun_exports:make_plain_job",
    "monarchmesh": "windlass.engines.exports.monarch_workers:make_plain",
    "pytorchjob": "windlass.engines.exports.torchrun_exports:make_plain_pytorchjob",
    "trainjob": "windlass.engines.exports.torchrun_exports:make_plain_trainjob",
}
# For operators before a version.
_OLDER = {
    "trainjob": ((2, 2), "windlass.engines.exports.torchrun_exports:make_older_plain_trainjob"),
}
_HINT = "put the code into the image and name its path there: --in-image /app/train.py"


class MakePlain(Protocol):
    """Pure function that renders manifests in the order to apply them."""

    def __call__(
        self,
        plan: Plan,
        *,
        script: str | None,
        rendezvous: Rendezvous,
        flags: tuple[str, ...] = (),
    ) -> list[dict[str, Any]]: ...


def load_plain(engine: str, version: str = "") -> MakePlain:
    """Return the function that renders an engine's manifests.

    `version` is the operator's version, such as 2.1 (default: the newest).
    """
    if engine not in _PLAIN:
        raise SpecError(
            f"the objects of the engine {engine} have no launcher without Windlass",
            hint=f"omit --plain, or choose another engine: {', '.join(_PLAIN)}",
        )
    since, older = _OLDER.get(engine, ((), ""))
    is_older = bool(version) and _read_version(version) < since
    module, _, attribute = (older if is_older else _PLAIN[engine]).partition(":")
    make_plain: MakePlain = getattr(importlib.import_module(module), attribute)
    return make_plain


def _read_version(text: str) -> tuple[int, ...]:
    numbers = text.removeprefix("v").split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        raise SpecError(f"invalid operator version {text!r}", hint="use a version such as 2.1")
    return tuple(map(int, numbers))


def read_solo(plan: Plan, folder: Path) -> str | None:
    """Return the text of the script, or None if the code is in the image."""
    if (plan.pod is not None and plan.pod.in_image) or _is_recipe(plan):
        return None
    if not isinstance(plan.work, Script):
        raise SpecError("a plain export can only include a single script", hint=_HINT)
    path = folder / plan.work.path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {plan.work.path}: {error}", hint=_HINT) from error
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        raise SpecError(
            f"{plan.work.path} has more than {MAX_SCRIPT_BYTES:,} bytes, too many for a ConfigMap",
            hint=_HINT,
        )
    for name in _imported(text, plan.work.path):
        if (path.parent / f"{name}.py").is_file() or (path.parent / name).is_dir():
            raise SpecError(
                f"{plan.work.path} imports {name} from the same folder, which cannot be included",
                hint=_HINT,
            )
    return text


def _is_recipe(plan: Plan) -> bool:
    """Return whether the work is a recipe, which the image of `windlass image recipes` contains."""
    return isinstance(plan.work, Module) and plan.work.name.startswith("windlass.recipes.")


def _imported(text: str, name: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SpecError(f"{name} is not valid Python: {error}", hint="correct that line") from error
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append((node.module or "").partition(".")[0])
    return [module for module in dict.fromkeys(modules) if module]
