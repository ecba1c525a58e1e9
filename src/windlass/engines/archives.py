"""Archives of Windlass's own code that are sent to nodes: the agent, and the training library.

The agent is a reproducible .pyz of Windlass's own modules and cloudpickle. The training library (`train` and
`recipes`) is a second archive, because most work does not need it and the agent must stay small.
`client.jobs.packing` decides when to send it. Both are built from the installed package on first use,
and kept in the user's cache. This module imports little, because `windlass run` imports it first.
"""

from __future__ import annotations

import _thread
import os
import sys
import zlib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from windlass.names import AGENT_FILE, VERSION
from windlass.trusted import find_foreign_fault, make_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_OURS = (
    *("__init__.py", "names.py", "errors.py", "records.py", "trusted.py", "waiting.py"),
    *("near_names.py", "processes.py", "exchange_threads.py"),
    *("distributed.py", "rank_stubs.py", "monarch/__init__.py"),
    *("spec", "plan", "wire", "frameworks", "agent"),
    *(f"bundle/{name}.py" for name in ("__init__", "archive", "manifest", "scan")),
)
# Modules that only clients use.
_NOT_OF_AGENTS = ("windlass/spec/launchers.py", "windlass/wire/log_files.py")
# Valid in any Python 3, so that an old interpreter can print the error.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    sys.exit("windlass: the nodes run Python {}.{}, 3.10 or newer is needed; choose another with --python"
             .format(*sys.version_info[:2]))
from windlass.agent.__main__ import main
sys.exit(main())
"""
# Concurrent first jobs share one build of the archive, because a build takes seconds.
_building = _thread.allocate_lock()
_logged: set[str] = set()
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGES = ("train", "recipes")

# The `windlass` package of the training library's archive. It is early on the path, finds the full package,
# and replaces itself with it. It skips an installed package of another version: the client's version wins.
_STUB = f"""import importlib.util, os, sys, zipimport
from importlib.machinery import PathFinder
_here = os.path.dirname(__file__)
_archive = os.path.dirname(_here)
_agent = os.path.join(os.path.dirname(_archive), {AGENT_FILE!r})
def _find():
    for path in sys.path:
        spec = None if path == _archive else PathFinder.find_spec("windlass", [path])
        try:
            names = spec.loader.get_data(os.path.join(os.path.dirname(spec.origin), "names.py"))
        except (AttributeError, OSError, TypeError):
            continue
        if {f'VERSION = "{VERSION}"'.encode()!r} in names:
            return spec
        break
    return zipimport.zipimporter(_agent).find_spec("windlass")
_spec = _find()
_spec.submodule_search_locations.insert(0, _here)
_module = sys.modules["windlass"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
"""


def find_archive() -> str | None:
    """Return the path of the archive for nodes of this machine, if it has been built."""
    from windlass.errors import EngineError

    try:
        path = _local_path()
        return (
            path if os.path.exists(path) and not find_foreign_fault(path, is_closed=True) else None
        )
    except (OSError, EngineError):
        return None  # a caller that requires the archive reports the error


def local_archive() -> str:
    """Return the archive for nodes of this machine, building it if necessary.

    It contains each source file and its byte code for this interpreter. Other interpreters ignore the byte
    code. Python writes no __pycache__ for archives, and compiling at every start would take longer than all
    other steps.
    """
    return keep_archive(_local_path(), build_archive)


def keep_archive(path: str, build: Callable[..., bytes]) -> str:
    """Return the path of an archive with byte code. If it does not exist, `build` creates its contents."""
    with _building:
        if os.path.lexists(path) and (fault := find_foreign_fault(path, is_closed=True)):
            _warn_once(f"{fault}; the archive is not run, but built again")
            os.unlink(path)
        if not os.path.exists(path):
            from pathlib import Path

            from windlass.wire.job_folder import write_once

            # Never overwrite an archive: Python processes that use it read at remembered offsets.
            write_once(Path(path), build(compiled=True))
    return path


def _local_path() -> str:
    return place_archive("agent", _sources())


def place_archive(kind: str, sources: Iterable[tuple[str, str]]) -> str:
    """Return the path for an archive of these files, named after their paths, sizes and times."""
    stats = ((path, os.stat(path)) for _, path in sources)
    key = repr([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]).encode()
    digest = f"{zlib.crc32(key):08x}{zlib.adler32(key):08x}"
    name = f"{kind}-{VERSION}-{sys.implementation.cache_tag}-{digest}.pyz"
    return os.path.join(_cache_folder(), name)


def _cache_folder() -> str:
    """Return a private cache folder, because its archives are executed."""
    from windlass.errors import EngineError

    home = os.path.expanduser("~/.cache")
    fault = ""
    for cache in dict.fromkeys((os.environ.get("XDG_CACHE_HOME") or home, home)):
        folder = os.path.join(cache, "windlass")
        try:
            make_own(folder, below=cache)
            fault = find_foreign_fault(folder, is_closed=True)
        except EngineError as error:
            fault = error.message
        if not fault:
            return folder
        _warn_once(f"{fault}; archives in it are not run")
    raise EngineError(fault, hint="set XDG_CACHE_HOME to a folder of your own")


def _warn_once(text: str) -> None:
    """Log a warning, unless it was logged before."""
    if text not in _logged:
        import logging

        _logged.add(text)
        logging.getLogger(__name__).warning(text)


def build_archive(*, compiled: bool = False) -> bytes:
    """Return the bytes of the agent's archive."""
    files = {"__main__.py": _MAIN}
    for name, path in _sources():
        with open(path, "rb") as file:
            data = file.read()
        # cloudpickle keeps its license, and the main program its usage text.
        is_bare = name.startswith("windlass/") and not name.endswith("__main__.py")
        files[name] = _without_docstrings(data) if is_bare else data
    return zip_modules(files, compiled=compiled)


def zip_modules(files: dict[str, bytes], *, compiled: bool) -> bytes:
    """Return an archive with sorted names and one time stamp, so that equal sources give equal bytes."""
    import io
    import zipfile

    if compiled:
        files |= {f"{name}c": _compile(name, data) for name, data in files.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _without_docstrings(source: bytes) -> bytes:
    """Remove docstrings to save space in a Secret. The lines keep their numbers for tracebacks."""
    import ast

    text = source.decode()
    lines = text.splitlines(keepends=True)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    objects = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    for node in objects:
        if len(node.body) > 1 and ast.get_docstring(node, clean=False) is not None:
            start, end = node.body[0].lineno, node.body[0].end_lineno or 0
            lines[start - 1 : end] = ["\n"] * (end - start + 1)
    return "".join(lines).encode()


def _compile(name: str, data: bytes) -> bytes:
    """Return byte code that Python does not check against its source."""
    from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[attr-defined]
    from importlib.util import source_hash

    code = compile(data, name, "exec", dont_inherit=True)
    return bytes(_code_to_hash_pyc(code, source_hash(data), False))


def _sources() -> Iterator[tuple[str, str]]:
    """Yield each file of the agent as its name in the archive and its path."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _OURS:
        path = os.path.join(package, name)
        yield from (
            list_modules(path, f"windlass/{name}")
            if os.path.isdir(path)
            else [(f"windlass/{name}", path)]
        )
    # The loaded module cannot be used: inside a rank it is part of an archive.
    spec = PathFinder.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        from windlass.errors import EngineError

        raise EngineError(
            "cloudpickle is missing", hint="run `pip install --force-reinstall windlass`"
        )
    yield from list_modules(os.path.dirname(spec.origin), "cloudpickle")


def list_modules(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield each module below a folder as its name in an archive and its path."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from list_modules(entry.path, f"{prefix}/{entry.name}")
        elif entry.name.endswith(".py") and f"{prefix}/{entry.name}" not in _NOT_OF_AGENTS:
            yield f"{prefix}/{entry.name}", entry.path


def read_train_archive() -> bytes:
    """Return the training library with byte code for this Python, built once and kept."""
    path = place_archive("train", [*_list_sources(), ("windlass/__init__.py", __file__)])
    return Path(keep_archive(path, build_train_archive)).read_bytes()


def build_train_archive(*, compiled: bool = False) -> bytes:
    """Return the bytes of the training library's archive."""
    files = {"windlass/__init__.py": _STUB.encode()}
    files |= {name: Path(path).read_bytes() for name, path in _list_sources()}
    return zip_modules(files, compiled=compiled)


def _list_sources() -> Iterator[tuple[str, str]]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _PACKAGES:
        yield from list_modules(os.path.join(package, name), f"windlass/{name}")
