"""Archives of our own code that travel to nodes: the agent, and the training library.

The agent is a .pyz of our own modules and cloudpickle, the same bytes every time. The training
library (`train` and `recipes`) is a second archive, because the agent's is small on purpose and
most work does not need it. `client.jobs.packing` decides when it travels. Both are built from
the installed package on first use and kept in the user's cache. Imports little: `windlass run`
needs it before anything else.
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
_NOT_OF_AGENTS = (
    "windlass/spec/launchers.py",
    "windlass/wire/log_files.py",
)  # only clients use them
# Plain enough for any Python 3: an old interpreter must get as far as being told.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    sys.exit("windlass: the nodes run Python {}.{}, 3.10 or newer is needed; choose another with --python"
             .format(*sys.version_info[:2]))
from windlass.agent.__main__ import main
sys.exit(main())
"""
_building = (
    _thread.allocate_lock()
)  # threads that all start their first job would each take seconds
_said: set[str] = set()
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGES = ("train", "recipes")

# The package as the archive has it: stands early on the path, looks for the rest of itself, and becomes that.
# An installed one of another version is passed over: the client's beats the image's.
_DOOR = f"""import importlib.util, os, sys, zipimport
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
    """The path of the archive for nodes of this machine, if it was built before."""
    from windlass.errors import EngineError

    try:
        path = _local_path()
        return (
            path if os.path.exists(path) and not find_foreign_fault(path, is_closed=True) else None
        )
    except (OSError, EngineError):
        return None  # the caller that needs it says so


def local_archive() -> str:
    """The archive for nodes of this machine, built if it is not there yet.

    Beside each source lies its byte code for this interpreter, which others ignore: an archive has no
    __pycache__, and compiling at every start would take longer than all else.
    """
    return keep_archive(_local_path(), build_archive)


def keep_archive(path: str, build: Callable[..., bytes]) -> str:
    """The archive at a path of `place_archive`, with byte code, built if it is not there yet."""
    with _building:
        if os.path.lexists(path) and (fault := find_foreign_fault(path, is_closed=True)):
            _say(f"{fault}; it is not run, and made anew")
            os.unlink(path)
        if not os.path.exists(path):
            from pathlib import Path

            from windlass.wire.job_folder import write_once

            # never over one that is there: Python reads an archive piece by piece, by places it remembers
            write_once(Path(path), build(compiled=True))
    return path


def _local_path() -> str:
    return place_archive("agent", _sources())


def place_archive(kind: str, sources: Iterable[tuple[str, str]]) -> str:
    """Where the archive of these very files is kept: their places, sizes and times make its name."""
    stats = ((path, os.stat(path)) for _, path in sources)
    key = repr([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]).encode()
    digest = f"{zlib.crc32(key):08x}{zlib.adler32(key):08x}"
    name = f"{kind}-{VERSION}-{sys.implementation.cache_tag}-{digest}.pyz"
    return os.path.join(_cache_folder(), name)


def _cache_folder() -> str:
    """A folder of ours, closed to others: what lies there is executed."""
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
        _say(f"{fault}; programs that are kept there are not run")
    raise EngineError(fault, hint="set XDG_CACHE_HOME to a folder of your own")


def _say(text: str) -> None:
    """Once."""
    if text not in _said:
        import logging

        _said.add(text)
        logging.getLogger(__name__).warning(text)


def build_archive(*, compiled: bool = False) -> bytes:
    """The archive's bytes."""
    files = {"__main__.py": _MAIN}
    for name, path in _sources():
        with open(path, "rb") as file:
            data = file.read()
        # what others wrote keeps its licence, and the program says what it is
        is_bare = name.startswith("windlass/") and not name.endswith("__main__.py")
        files[name] = _without_docstrings(data) if is_bare else data
    return zip_modules(files, compiled=compiled)


def zip_modules(files: dict[str, bytes], *, compiled: bool) -> bytes:
    """Sorted names, one time stamp, so that equal sources give equal bytes."""
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
    """The same program on the same lines, which tracebacks name: the archive travels in a Secret."""
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
    """Byte code that is not checked against its source: it was made of these very bytes."""
    from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[attr-defined]
    from importlib.util import source_hash

    code = compile(data, name, "exec", dont_inherit=True)
    return bytes(_code_to_hash_pyc(code, source_hash(data), False))


def _sources() -> Iterator[tuple[str, str]]:
    """Each file that travels: its name in the archive, and where it lies."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _OURS:
        path = os.path.join(package, name)
        yield from (
            list_modules(path, f"windlass/{name}")
            if os.path.isdir(path)
            else [(f"windlass/{name}", path)]
        )
    # not what is loaded: inside a rank that comes from an archive
    spec = PathFinder.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        from windlass.errors import EngineError

        raise EngineError("cloudpickle is missing", hint="pip install --force-reinstall windlass")
    yield from list_modules(os.path.dirname(spec.origin), "cloudpickle")


def list_modules(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Each module below a folder: its name in an archive, and where it lies."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from list_modules(entry.path, f"{prefix}/{entry.name}")
        elif entry.name.endswith(".py") and f"{prefix}/{entry.name}" not in _NOT_OF_AGENTS:
            yield f"{prefix}/{entry.name}", entry.path


def read_train_archive() -> bytes:
    """With byte code, which pods of this Python need not make; built once, and kept."""
    path = place_archive("train", [*_list_sources(), ("windlass/__init__.py", __file__)])
    return Path(keep_archive(path, build_train_archive)).read_bytes()


def build_train_archive(*, compiled: bool = False) -> bytes:
    """The archive's bytes."""
    files = {"windlass/__init__.py": _DOOR.encode()}
    files |= {name: Path(path).read_bytes() for name, path in _list_sources()}
    return zip_modules(files, compiled=compiled)


def _list_sources() -> Iterator[tuple[str, str]]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _PACKAGES:
        yield from list_modules(os.path.join(package, name), f"windlass/{name}")
