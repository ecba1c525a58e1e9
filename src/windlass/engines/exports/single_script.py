"""The one script that an export without Windlass can carry; everything else must be in the image.

Reads a file, and looks beside it: a script that imports its neighbours is refused here rather than by a pod.
"""

from __future__ import annotations

import ast
from pathlib import Path

from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import MAX_SCRIPT_BYTES
from windlass.plan.plan import Plan
from windlass.spec.work import Module, Script

_HINT = "put the code into the image and name its path there: --in-image /app/train.py"


def read_solo(plan: Plan, folder: Path) -> str | None:
    """The script's text; None when the code is in the image."""
    if (plan.pod is not None and plan.pod.in_image) or _is_recipe(plan):
        return None
    if not isinstance(plan.work, Script):
        raise SpecError("only a single script can travel without Windlass", hint=_HINT)
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
                f"{plan.work.path} imports {name}, which lies beside it and cannot travel",
                hint=_HINT,
            )
    return text


def _is_recipe(plan: Plan) -> bool:
    """Whether it is a program of ours, which is in the image that `windlass image recipes` describes."""
    return isinstance(plan.work, Module) and plan.work.name.startswith("windlass.recipes.")


def _imported(text: str, name: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SpecError(f"{name} is not Python: {error}", hint="correct that line") from error
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append((node.module or "").partition(".")[0])
    return [module for module in dict.fromkeys(modules) if module]
