"""The training library as one file, which travels with work that imports it: `train`, `recipes`, and a door.

A second archive, since the agent's is small on purpose, and most work does not need this one. Built as the
agent's is. What decides that it travels is `client.jobs.train_travel`; pods find it by a variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from windlass.engines.pyz import keep_archive, list_modules, place_archive, zip_modules
from windlass.names import AGENT_FILE, VERSION

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
