"""Which `windlass` a command's Python imports: the installed one if there is one, else the archive's.

A command is no rank of ours: it has an interpreter of its own, which knows nothing of the agent's archive.
The archive itself is not put on its path, since it also holds a cloudpickle, which might not be the image's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from windlass import names
from windlass.trusted import make_own

# Stands first on the path and steps aside when it is imported.
_PACKAGE = """import importlib.util, sys, zipimport
sys.path[:] = [path for path in sys.path if path != {folder!r}]
_specs = (finder.find_spec("windlass", None) for finder in sys.meta_path)
_spec = next((spec for spec in _specs if spec is not None), None)
_spec = _spec or zipimport.zipimporter({archive!r}).find_spec("windlass")
_module = sys.modules["windlass"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
"""


def lend_package(folder: Path) -> None:
    """Let `import windlass` work in this process after its exec."""
    archive = os.path.abspath(sys.argv[0])
    package = folder / "windlass"
    make_own(package, below=folder.parent)
    beside = package / f"{os.getpid()}.tmp"
    beside.write_text(_PACKAGE.format(archive=archive, folder=str(folder)))
    beside.rename(package / "__init__.py")  # ranks of one node may do this at the same time
    paths = [os.environ.get("PYTHONPATH", ""), os.environ.get(names.TRAIN, ""), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in paths if entry)
