"""Conversion of a target to the work of a job.

A target is a callable, a script, `file.py::function`, `-m module` or a command. This module also decides
which import paths the ranks need, and whether to preload torch. It reads files and runs nothing. A target in
the image is neither sent nor checked here, and its relative path starts at the image's working folder.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.client.jobs.source_analysis import (
    TORCH,
    TRAINING,
    EarlyWrite,
    find_early_write,
    find_imported,
    find_module,
    is_of_train,
    parse_source,
)
from windlass.errors import BundleError, SpecError
from windlass.near_names import did_you_mean
from windlass.spec.work import Command, Function, Module, Script, Work
from windlass.wire import pickling


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTarget:
    """Work, the payload that is sent with it, and the source that shows its imports."""

    work: Work
    payload: bytes | None = None
    source: Path | None = None
    preload: tuple[str, ...] | None = None  # modules to preload, or None to find them in the source
    root: Path | None = None  # folder of absolute imports (default: the source's folder)
    packages: tuple[Path, ...] = ()  # packages that are imported before a module
    is_self_contained: bool = False  # True for a function that is sent without its source

    def find_early_write(self) -> EarlyWrite | None:
        """Return a variable that the source sets before it imports torch, which rules out a preload."""
        if self.source is None or not self.source.is_file():
            return None
        name = self.work.name.rpartition(".")[2] if isinstance(self.work, Function) else ""
        root = self.root or self.source.parent
        scripts = (*self.packages, self.source)
        return find_early_write(scripts, root, function=name if self.is_self_contained else "")


def read_work_target(
    target: str | Path | Callable[..., Any] | Sequence[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    cwd: Path,
    is_local: bool = True,
    given: str = "",
) -> WorkTarget:
    """Return the work of `target` with its arguments. A command that runs here must exist here.

    `given` is a parameter that the framework passes to a function.
    """
    kwargs = dict(kwargs or {})
    if callable(target):
        return _read_function(target, args, kwargs, given)
    asked: object = target
    if isinstance(asked, bytes) or not isinstance(asked, (str, Path, Sequence)):
        raise SpecError(
            f"cannot run {target!r:.60}",
            hint='pass a function, a script "train.py", "train.py::function", "-m module" or a list of words',
        )
    if not isinstance(target, (str, Path)):
        return _read_words([str(word) for word in target], args, kwargs, cwd, is_local=is_local)
    text = str(target)
    if "::" in text and not text.startswith("-m"):
        return _read_file_function(text, args, kwargs, cwd)
    return _read_words([text], args, kwargs, cwd, is_local=is_local)


def _read_function(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: str
) -> WorkTarget:
    name = function_name(function)
    check_call(function, args, kwargs, name, given)
    payload = _dump_call(function, args, kwargs, name)
    inner = unwrap_partial(function)
    module = sys.modules.get(getattr(inner, "__module__", "") or "")
    source = getattr(module, "__file__", None)
    return WorkTarget(
        work=Function(name=name),
        payload=payload,
        source=Path(source) if source else None,
        preload=_choose_for(payload),
        is_self_contained=is_self_contained(inner),
    )


def is_self_contained(function: Any) -> bool:
    """Return whether a function is sent without its module, and refers to nothing of torch."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    is_by_value = function.__module__ == "__main__" or "<locals>" in function.__qualname__
    if not is_by_value:
        return False
    known = getattr(function, "__globals__", {})
    return not any(_is_of_torch(known.get(name)) for name in code.co_names)


def _is_of_torch(thing: Any) -> bool:
    name = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "torch"


def check_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    given: str = "",
) -> None:
    """Check the arguments against the signature in the client, before they fail on every rank."""
    signature = inspect_signature(function, given)
    if signature is not None:
        check_bound(signature, args, kwargs, name)


def inspect_signature(function: Callable[..., Any], given: str = "") -> inspect.Signature | None:
    """Return the signature without `given`, or None if it cannot be inspected, as with some builtins."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    if given not in signature.parameters:
        return signature
    others = [one for name, one in signature.parameters.items() if name != given]
    return signature.replace(parameters=others)


def check_bound(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> None:
    """Reject arguments that do not fit a signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SpecError(
            f"{name} cannot be called: {error}", hint=f"the signature is {name}{signature}"
        ) from error


def _dump_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> bytes:
    try:
        return pickling.dump((function, tuple(args), dict(kwargs)), name=name)
    except BundleError:
        blame_argument(inspect_signature(function), args, kwargs, name)
        pickling.dump(function, name=name)
        raise


def blame_argument(
    signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> None:
    """Raise BundleError for an argument that cannot be pickled, with the name of the argument."""
    named: Mapping[str, Any] = {f"argument {i}": value for i, value in enumerate(args)} | {**kwargs}
    if signature is not None:
        with contextlib.suppress(TypeError):
            named = signature.bind_partial(*args, **kwargs).arguments
    for argument, value in named.items():
        pickling.dump(value, name=f"{name}: {argument}")


def _choose_for(payload: bytes) -> tuple[str, ...] | None:
    if re.search(rb"windlass\.(?:train|recipes)\b", payload):
        return TRAINING
    return TORCH if "torch" in sys.modules or b"torch" in payload else None


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a callable for messages."""
    inner = unwrap_partial(function)
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def unwrap_partial(function: Any) -> Any:
    """Return the function inside partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _read_file_function(
    text: str, args: Sequence[Any], kwargs: Mapping[str, Any], cwd: Path
) -> WorkTarget:
    file, _, name = text.partition("::")
    if not file:
        raise SpecError(f"no file given before {text}", hint="use FILE.py::FUNCTION")
    path = find_script(file, cwd)
    if not name.isidentifier():
        raise SpecError(f"invalid function name {name!r}", hint="use FILE.py::FUNCTION")
    payload = pickling.dump((None, tuple(args), dict(kwargs)), name="arguments")
    return WorkTarget(work=Function(name=name, file=str(path)), payload=payload, source=path)


def _read_words(
    words: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cwd: Path,
    *,
    is_local: bool,
) -> WorkTarget:
    words = [*words, *(str(arg) for arg in args)]
    if not words or not words[0]:
        raise SpecError("nothing to run", hint="run `windlass run train.py`")
    if kwargs:
        raise SpecError(
            f"keyword arguments can be passed only to functions, not to {words[0]}",
            hint="use args=[...], or FILE.py::FUNCTION",
        )
    if words[0] == "-m" or words[0].startswith("-m "):
        return _read_module(words, cwd)
    is_name = "/" not in words[0]  # perhaps the name of a program
    if not words[0].endswith(".py") and is_name and shutil.which(words[0]):
        return WorkTarget(work=Command(argv=tuple(words)), preload=())
    path = (cwd / Path(words[0]).expanduser()).absolute()
    if path.is_dir() and (path / "__main__.py").is_file():
        return WorkTarget(
            work=Script(path=words[0], args=tuple(words[1:])), source=path / "__main__.py"
        )
    if words[0].endswith(".py") or is_python(path):
        path = find_script(words[0], cwd)
        return WorkTarget(work=Script(path=words[0], args=tuple(words[1:])), source=path)
    return WorkTarget(work=_find_command(words, cwd, is_local=is_local), preload=())


def is_python(path: Path) -> bool:
    """Return whether a file without `.py` is a Python script or an archive of one."""
    if not path.is_file():
        return False
    if path.suffix in (".pyz", ".zip"):
        return True
    source = path.read_bytes()
    first = source[: source.find(b"\n") + 1]
    if first.startswith(b"#!"):
        # Installed programs next to an interpreter, such as torchrun, use their own interpreter.
        return b"python" in first and not (path.parent / "python").exists()
    return bool(source.strip()) and b"\0" not in source[:1024] and parse_source(source) is not None


def _find_command(words: Sequence[str], cwd: Path, *, is_local: bool) -> Command:
    """Return the command. A program for another machine is not looked for here."""
    path = cwd / words[0]
    if path.is_file():
        return Command(argv=(f"./{words[0]}" if "/" not in words[0] else words[0], *words[1:]))
    # The PATH may lack the folder of the virtual environment.
    beside = shutil.which(words[0], path=str(Path(sys.executable).parent))
    if beside is not None and is_local:
        return Command(argv=(beside, *words[1:]))
    if is_local or "/" in words[0]:
        if path.is_dir():
            find_script(words[0], cwd)  # raises, because it is a folder
        raise SpecError(
            f"no script or command named {words[0]!r}", hint=_nearest_script(words[0], cwd)
        )
    return Command(argv=tuple(words))


def _read_module(words: Sequence[str], cwd: Path) -> WorkTarget:
    names = words[0].split()[1:] + list(words[1:])
    if not names:
        raise SpecError(
            "-m requires the name of a module", hint="run `windlass run -m package.module`"
        )
    work = Module(name=names[0], args=tuple(names[1:]))
    files = list(find_imported(names[0], 0, cwd, cwd))
    if main := list(find_module(f"{names[0]}.__main__", cwd)):
        files += main
    source = files.pop() if files else None
    preload = TRAINING if is_of_train(names[0]) else TORCH
    return WorkTarget(work=work, source=source, preload=preload, root=cwd, packages=tuple(files))


def find_script(name: str, cwd: Path) -> Path:
    """Return the path of a script. Raise SpecError with the nearest name if there is none."""
    path = (cwd / Path(name).expanduser()).absolute()
    if path.is_dir():
        raise SpecError(
            f"{name} is a folder without __main__.py",
            hint=f"run a script in it: `windlass run {name}/train.py`",
        )
    if not path.exists():
        raise SpecError(f"script not found: {name}", hint=_nearest_script(name, cwd))
    if not os.access(path, os.R_OK):
        raise SpecError(f"cannot read {name}: permission denied", hint=f"run `chmod u+r {name}`")
    return path


def _nearest_script(name: str, cwd: Path) -> str:
    folder = (cwd / name).parent
    here = [entry.name for entry in folder.glob("*.py")] if folder.is_dir() else []
    listed = f"scripts in {folder}: {', '.join(sorted(here)[:6])}"
    return did_you_mean(
        Path(name).name,
        here,
        listed if here else f"{folder} has no scripts",
        show=Path(name).parent.joinpath,
        alike=0.5,
    )


def import_paths() -> tuple[str, ...]:
    """Return the import paths of this process, without those of the interpreter itself."""
    # Not the whole prefix is excluded: a project may be in /usr/src with the system's Python in /usr.
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    folders = ("bin", "lib", "lib64", os.path.join("local", "lib"))
    own = tuple(os.path.join(p, folder, "") for p in prefixes for folder in folders)
    paths = (os.path.abspath(path) for path in sys.path)
    return tuple(
        path
        for path in dict.fromkeys(paths)
        if os.path.isdir(path) and not os.path.join(path, "").startswith(own)
    )


def read_in_image(
    target: str | Path | Callable[..., Any] | Sequence[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> WorkTarget:
    """Return the work of a target in the image, with its arguments."""
    if callable(target):
        raise SpecError(
            "a function of this process is not in the image",
            hint='name its file in the image, like "/app/train.py::function", or remove in_image',
        )
    words = [str(target)] if isinstance(target, (str, Path)) else [str(word) for word in target]
    if not words or not words[0]:
        raise SpecError("nothing to run", hint="run `windlass run --in-image /app/train.py`")
    if "::" in words[0]:
        return _read_function_there(words, args, kwargs or {})
    if kwargs:
        raise SpecError(
            f"keyword arguments can be passed only to functions, not to {words[0]}",
            hint="use args=[...], or FILE.py::FUNCTION",
        )
    words = [*words[0].split(maxsplit=1), *words[1:]] if words[0].startswith("-m ") else words
    words += [str(arg) for arg in args]
    if words[0] == "-m":
        if len(words) < 2:
            raise SpecError("-m requires the name of a module", hint="use -m package.module")
        return WorkTarget(work=Module(name=words[1], args=tuple(words[2:])), preload=())
    if words[0].endswith(".py"):
        return WorkTarget(work=Script(path=words[0], args=tuple(words[1:])), preload=())
    return WorkTarget(work=Command(argv=tuple(words)), preload=())


def _read_function_there(
    words: list[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> WorkTarget:
    file, _, name = words[0].partition("::")
    if not file or not name.isidentifier():
        raise SpecError(f"{words[0]!r} does not name a function", hint="use FILE.py::FUNCTION")
    payload = pickling.dump((None, (*words[1:], *args), dict(kwargs)), name="arguments")
    return WorkTarget(work=Function(name=name, file=file), payload=payload, preload=())
