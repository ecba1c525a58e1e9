"""Packing of what nodes on other machines need: the project as an archive, and the training library.

`windlass.bundle` decides which files belong to a project. The training library is sent if the source, the
payload or the words of a command name it, because images do not contain windlass. It is always sent with a
target in an image, because its source cannot be read here.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from windlass import names
from windlass.bundle.archive import write_archive
from windlass.bundle.collect import collect
from windlass.bundle.functions import read_contents
from windlass.bundle.manifest import EMPTY, make_delta
from windlass.bundle.select import check_root, find_root, is_project_root, select_files
from windlass.client.jobs.source_analysis import is_of_train, walk_imports
from windlass.client.jobs.target import WorkTarget, is_python
from windlass.errors import BundleError, SpecError
from windlass.plan.plan import Input
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Command, Function, Module, Script
from windlass.trusted import make_own
from windlass.wire.job_folder import write_once

_NAMES = re.compile(rb"windlass\W{1,8}(?:train|recipes)\b")
_MAX_SHELL_BYTES = 1 << 16

# its path in pods, the value of `names.TRAIN`
TRAIN_ARCHIVE = f"{names.FILES_FOLDER}/{names.TRAIN_FILE}"
_KEPT_BUNDLES = 8


def needs_train(target: WorkTarget, cwd: Path) -> bool:
    """Return whether the work appears to import the training library, judging by its source."""
    work = target.work
    if isinstance(work, Command):
        return _is_named(work.argv, cwd)
    if isinstance(work, Module) and (is_of_train(work.name) or _is_named(work.args, cwd)):
        return True
    if target.payload is not None and _is_in_payload(target.payload):
        return True
    sources = (*target.packages, *([target.source] if target.source else []))
    return any(_imports_train(source, target.root or source.parent) for source in sources)


def _is_in_payload(payload: bytes) -> bool:
    """Return whether a payload names the library, by module name or as two separate names in code."""
    has_part = b"train" in payload or b"recipes" in payload
    return b"windlass" in payload and (bool(_NAMES.search(payload)) or has_part)


def _imports_train(source: Path, root: Path) -> bool:
    return any(level == 0 and is_of_train(name) for name, level in walk_imports(source, root))


def _is_named(words: Iterable[str], cwd: Path) -> bool:
    """Return whether words name the library, or a file that imports it."""
    parts = [part for word in words for part in word.split()]
    if any(is_of_train(part) for part in parts):
        return True
    return any(_reaches_train(path, cwd) for path in _find_files(parts, cwd))


def _reaches_train(path: Path, cwd: Path) -> bool:
    if is_python(path):
        return _imports_train(path, path.parent)
    if path.stat().st_size > _MAX_SHELL_BYTES:
        return False
    text = path.read_bytes()
    if b"\0" in text:
        return False
    parts = text.decode(errors="replace").split()
    named = (file for file in _find_files(parts, cwd) if is_python(file))
    return any(map(is_of_train, parts)) or any(_imports_train(file, file.parent) for file in named)


def _find_files(parts: Iterable[str], cwd: Path) -> Iterator[Path]:
    for part in dict.fromkeys(parts):
        path = cwd / part.strip("\"';()")
        try:
            if path.is_file():
                yield path
        except (OSError, ValueError):  # too long for a file name, or not a valid one
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Spec with the paths of the nodes, and the files that must be sent for them."""

    spec: JobSpec
    bundle: Path | None = None
    inputs: tuple[Input, ...] = ()
    python_minor: str = ""


def pack_code(
    spec: JobSpec,
    target: WorkTarget,
    *,
    cwd: Path,
    code_folder: str,
    home: Path,
    root: Path | None = None,
) -> Packed:
    """Pack everything that nodes need from this machine.

    `root` is the project's folder. By default it is found from the code.
    """
    is_in_image = spec.pod is not None and spec.pod.in_image
    if is_in_image or needs_train(target, cwd):
        spec = replace(spec, env={**spec.env, names.TRAIN: TRAIN_ARCHIVE})
    contents = None if target.payload is None else read_contents(target.payload)
    inputs = [] if target.payload is None else [_make_input(names.PAYLOAD_FILE, target.payload)]
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}" if contents and contents.by_value else ""
    if is_in_image:
        return Packed(spec=spec, inputs=tuple(inputs), python_minor=minor)
    if root is None and isinstance(target.work, Command) and not has_project(cwd):
        return Packed(spec=replace(spec, cwd=""), inputs=tuple(inputs), python_minor=minor)
    root = root.resolve() if root else choose_root(_find_source(target, cwd), cwd)
    bundle = _pack_root(root, home / "bundles")
    inputs.append(_make_input(names.BUNDLE_FILE, bundle.read_bytes()))
    check_modules(contents.modules if contents else (), root, spec.paths)
    moved = _move(spec, target, root=root, cwd=cwd, code_folder=code_folder)
    return Packed(spec=moved, bundle=bundle, inputs=tuple(inputs), python_minor=minor)


def has_project(cwd: Path) -> bool:
    """Return whether this folder has a project. A program of the image may run without one."""
    try:
        return bool(select_files(check_root(find_root(cwd))))
    except BundleError:
        return False


def choose_root(source: Path, cwd: Path) -> Path:
    """Return the project of the source.

    Without a marked project it is the current folder, if the source is in it.
    """
    root = find_root(source)
    return (
        root if is_project_root(root) or not root.is_relative_to(cwd.resolve()) else find_root(cwd)
    )


def _find_source(target: WorkTarget, cwd: Path) -> Path:
    """Return the path from which to find the project: the target's file, unless it is installed."""
    source = target.source
    if source is None or not source.exists():
        return cwd
    resolved = source.resolve()
    inside = resolved.is_relative_to(Path(sys.base_prefix) / "lib")
    return cwd if _is_installed(resolved) or inside else resolved


def _is_installed(path: Path) -> bool:
    """Return whether a file belongs to an installed package of any environment."""
    return any(part in ("site-packages", "dist-packages") for part in path.parts)


def _move(spec: JobSpec, target: WorkTarget, *, root: Path, cwd: Path, code_folder: str) -> JobSpec:
    there = PurePosixPath(code_folder)

    def move(path: str) -> str | None:
        resolved = Path(path).resolve()
        if not resolved.is_relative_to(root):
            return None
        return str(there / resolved.relative_to(root))

    here = move(str(cwd)) or code_folder

    def move_file(path: str) -> str:
        """Return the path on the nodes, relative to the folder of the ranks."""
        moved = move(str(cwd / Path(path).expanduser()))
        return os.path.relpath(moved, here) if moved else path

    work = target.work
    if isinstance(work, Script):
        work = replace(work, path=move_file(work.path))
    elif isinstance(work, Function) and work.file:
        work = replace(work, file=move_file(work.file))
    paths = [moved for path in spec.paths if (moved := move(path))]
    return replace(spec, work=work, cwd=here, paths=tuple(paths))


def check_modules(modules: Iterable[str], root: Path, paths: Iterable[str]) -> None:
    """Reject modules outside the project, because nodes import functions by name."""
    for name in modules:
        top = name.partition(".")[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or top == "windlass":
            continue
        module_path = Path(file).resolve()
        if _is_installed(module_path):
            continue
        is_ours = any(module_path.is_relative_to(Path(path).resolve()) for path in paths)
        if is_ours and not module_path.is_relative_to(root):
            raise SpecError(
                f"the module {name} is in {module_path.parent}, outside the project {root}",
                hint="move it into the project, or install it in the image",
            )


def _pack_root(root: Path, folder: Path) -> Path:
    """Return the archive of a project. An earlier archive of the same files is reused."""
    bundle = collect(root)
    path = folder / f"{bundle.manifest.digest[:32]}.tar.gz"
    if not path.exists():
        make_own(folder, below=folder.parent)
        packed = io.BytesIO()
        write_archive(root, make_delta(EMPTY, bundle.manifest), packed)
        write_once(path, packed.getvalue())
        _forget_old(folder)
    return path


def _forget_old(folder: Path) -> None:
    bundles = sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for path in bundles[:-_KEPT_BUNDLES]:
        path.unlink(missing_ok=True)


def _make_input(name: str, data: bytes) -> Input:
    return Input(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
