"""The agent as one file: a .pyz of our own modules and cloudpickle, the same bytes every time.

Built from the installed package on first use and cached by its content. Knows which packages travel;
nothing of how they are started.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from windlass.errors import EngineError
from windlass.wire.folder import write_atomically

_OURS = ("__init__.py", "names.py", "errors.py", "records.py", "spec", "plan", "wire", "agent")
# Plain enough for any Python 3: an old interpreter must get as far as being told.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    sys.exit("windlass: the nodes run Python {}.{}, 3.10 or newer is needed; choose another with --python"
             .format(*sys.version_info[:2]))
from windlass.agent.__main__ import main
sys.exit(main())
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_archive(cache: Path, *, compiled: bool = False) -> Path:
    """The path of the agent's .pyz, built if this version of it is not there yet.

    For nodes of this machine it also holds byte code for this interpreter, which others ignore: an
    archive has no __pycache__, and compiling at every start would take longer than all else.
    """
    files = _collect()
    content = b"".join(name.encode() + b"\0" + data for name, data in files)
    tag = f"-{sys.implementation.cache_tag}" if compiled else ""
    path = cache / f"agent-{hashlib.sha256(content).hexdigest()[:16]}{tag}.pyz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, build_archive(_compile(files) if compiled else files))
    return path


def _compile(files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The files, and each one's byte code beside it; made of these very bytes, it is not checked."""
    from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[attr-defined]
    from importlib.util import source_hash

    def compile_one(name: str, data: bytes) -> bytes:
        code = compile(data, name, "exec", dont_inherit=True)
        return bytes(_code_to_hash_pyc(code, source_hash(data), False))

    return sorted([*files, *((f"{name}c", compile_one(name, data)) for name, data in files)])


def build_archive(files: list[tuple[str, bytes]] | None = None) -> bytes:
    """The archive's bytes: sorted names, one time stamp, so that equal sources give equal files."""
    import zipfile  # slow to import, and needed once a version

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files or _collect():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _collect() -> list[tuple[str, bytes]]:
    package = Path(__file__).parent.parent
    files = {"__main__.py": _MAIN}
    for name in _OURS:
        for path in (
            sorted((package / name).rglob("*.py"))
            if (package / name).is_dir()
            else [package / name]
        ):
            files[f"windlass/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    for path in sorted(_cloudpickle().glob("*.py")):
        files[f"cloudpickle/{path.name}"] = path.read_bytes()
    return sorted(files.items())


def _cloudpickle() -> Path:
    spec = find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise EngineError("cloudpickle is missing", hint="pip install --force-reinstall windlass")
    return Path(os.path.dirname(spec.origin))
