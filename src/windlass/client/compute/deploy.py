"""deploy: import a script, and bring up each decorated object and each app in it.

The script is imported under its own name, not as `__main__`, so that nodes can import it too and what it does
when it is run stays undone. What there is to bring up is found in the names it defines.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from windlass.client.compute.app import App
from windlass.client.compute.decorators import Decorated
from windlass.errors import SpecError, WindlassError
from windlass.near_names import did_you_mean
from windlass.rank_stubs import is_inside

_NOTHING = "decorate a function with @wl.compute(...), or make an app with wl.app(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedObject:
    """One thing that is up, and where."""

    name: str
    kind: str  # function, class or app
    ref: str  # of its job


def find_deployables(module: ModuleType, name: str = "") -> list[Decorated | App]:
    """What a module holds that can be brought up, in the order it was written; one of it by its name."""
    held = vars(module).items()
    deployables = {key: value for key, value in held if isinstance(value, (Decorated, App))}
    if not deployables:
        raise SpecError(f"there is nothing to deploy in {module.__name__}.py", hint=_NOTHING)
    wanted = [value for key, value in deployables.items() if name in ("", key, value.name)]
    if not wanted:
        raise SpecError(
            f"{module.__name__}.py holds no decorated function, class or app {name!r}",
            hint=did_you_mean(name, deployables),
        )
    return list({id(value): value for value in wanted}.values())


def deploy(
    deployables: list[Decorated | App], *, replace: bool = False
) -> Iterator[DeployedObject]:
    """Bring them up one after the other; each is told of as it comes up."""
    for deployable in deployables:
        if isinstance(deployable, App):
            job = deployable.deploy(replace=replace)
            yield DeployedObject(name=deployable.name, kind="app", ref=str(job.ref))
        else:
            deployable.deploy()
            kind = "class" if deployable.is_class else "function"
            yield DeployedObject(name=deployable.name, kind=kind, ref=str(deployable.ref))


def import_script(path: Path) -> ModuleType:
    """The script as a module of its own name, its folder on the path as if it had been run."""
    if is_inside():
        raise SpecError(
            "inside a job decorators leave functions as they are, so there is nothing to deploy",
            hint="run windlass deploy outside of it",
        )
    path = path.resolve()
    name = path.stem
    if "." in name:
        raise SpecError(
            f"{path.name} cannot be imported: {name!r} is not the name of a module",
            hint="rename it, with no dot but that of .py",
        )
    known = getattr(sys.modules.get(name), "__file__", None)
    if name in sys.modules and (known is None or Path(known).resolve() != path):
        raise SpecError(
            f"{path.name} has the name of a module that is loaded already: {known or name}",
            hint="give the script another name",
        )
    sys.path.insert(0, str(path.parent))
    return _execute(name, path)


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path.name} is not a Python file", hint="name a script: my_script.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise SpecError(
            f"{error.filename}, line {error.lineno}: {error.msg}", hint="correct that line"
        ) from error
    except WindlassError:
        raise
    except (Exception, SystemExit) as error:  # whatever a script does when it is imported
        where = _find_line(error, path)
        raise SpecError(
            f"{where} raised {type(error).__name__}: {error}",
            hint='deploy imports the script; what only a run should do goes under if __name__ == "__main__":',
        ) from error
    return module


def _find_line(error: BaseException, path: Path) -> str:
    """The last line of the script itself that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return f"{path.name}, line {lines[-1]}," if lines else path.name
