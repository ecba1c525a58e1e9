"""What a command's Python finds of ours where Windlass is not installed: `windlass`, and nothing else.

A command is no rank of ours: it has its own interpreter, which knows nothing of the agent's archive. The
archive itself is not put on its path, since it also holds a cloudpickle, which might not be the image's.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_PACKAGE = """import zipimport
_ARCHIVE = {archive!r}
__path__ = [_ARCHIVE + "/windlass"]
exec(zipimport.zipimporter(_ARCHIVE).get_source("windlass"))
"""


def lend_package(folder: Path) -> None:
    """Let `import windlass` work in this process after its exec."""
    archive = os.path.abspath(sys.argv[0])
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != archive]
    if not archive.endswith(".pyz") or PathFinder.find_spec("windlass", path) is not None:
        return
    package = folder / "windlass"
    package.mkdir(parents=True, exist_ok=True)
    beside = package / f"{os.getpid()}.tmp"
    beside.write_text(_PACKAGE.format(archive=archive))
    beside.rename(package / "__init__.py")  # ranks of one node may do this at the same time
    paths = [os.environ.get("PYTHONPATH", ""), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in paths if entry)
