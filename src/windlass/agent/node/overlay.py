"""Where image steps install to: a virtual environment laid over the one that ranks have.

What is installed below is seen and counts as installed, so torch is not fetched again; what is put on top
wins, and nothing below is ever touched. (`pip install --prefix` uninstalls what it replaces below; uv does
not see what is below at all: docs/decisions/uv-and-pip.md.) Only says what to run; `agent.node.image_steps`
runs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

# Settings of pip that choose no packages. Where there are others uv, which reads none of them, is not used.
_HARMLESS = frozenset(
    {
        *("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR", "PIP_CACHE_DIR", "PIP_NO_INPUT"),
        *("PIP_ROOT_USER_ACTION", "PIP_DEFAULT_TIMEOUT", "PIP_BREAK_SYSTEM_PACKAGES"),
        *("PIP_PROGRESS_BAR", "PIP_QUIET", "PIP_VERBOSE", "PIP_NO_COLOR", "PIP_RETRIES"),
    }
)
# Each would make pip install to somewhere else.
_MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_PYTHON", "PYTHONHOME")
_WHEEL = ".whl"
_LENT = "windlass-lent"  # marks what says of a package below that it is installed
_CONFIG = "PIP_CONFIG_FILE"
_CONFIGS = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")

# Both run in the interpreter below. The first makes the overlay, with `pip` on it.
_MAKE = """
import sys
sys.path = [path for path in sys.path if path]
import os, site, venv
folder = sys.argv[1]
venv.EnvBuilder(symlinks=True, clear=True).create(folder)
version = "python%d.%d" % sys.version_info[:2]
below = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
with open(os.path.join(folder, "lib", version, "site-packages", "_windlass.pth"), "w") as file:
    file.writelines(f"import site; site.addsitedir({path!r})\\n" for path in below)
if os.path.exists(config := os.path.join(sys.prefix, "pip.conf")):
    os.symlink(config, os.path.join(folder, "pip.conf"))
bin = os.path.join(folder, "bin")
with open(os.path.join(bin, "_pip.py"), "w") as file:
    file.write("import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)\\n")
for name in ("pip", "pip3"):
    with open(path := os.path.join(bin, name), "w") as file:
        file.write('#!/bin/sh\\nexec "${0%/*}/python" "${0%/*}/_pip.py" "$@"\\n')
    os.chmod(path, 0o755)
"""
# The second tells uv what is below, by leaving in the overlay that it is installed.
_LEND = """
import sys
sys.path = [path for path in sys.path if path]
import importlib.metadata, os, re
site, mark = sys.argv[1:]
def known(name): return re.sub("[-_.]+", "-", name).lower()
own = {known(name.split("-")[0]) for name in os.listdir(site) if name.endswith(".dist-info")}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if not name or known(name) in own:
        continue
    own.add(known(name))
    lent = "%s-%s.dist-info" % (re.sub("[-_.]+", "_", name), distribution.version)
    os.mkdir(os.path.join(site, lent))
    about = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    files = {"METADATA": about, "INSTALLER": mark}
    files["RECORD"] = "".join(f"{lent}/{file},,\\n" for file in (*files, "RECORD"))
    for file, text in files.items():
        with open(os.path.join(site, lent, file), "w", encoding="utf-8") as out:
            out.write(text)
"""


class Overlay:
    """The overlay of one node, in `folder`."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._below = python
        self.python = str(folder / "bin" / "python")

    @property
    def is_made(self) -> bool:
        return Path(self.python).exists() and self._site is not None

    @property
    def _site(self) -> Path | None:
        return next(self.folder.glob("lib/python*/site-packages"), None)

    def make(self) -> list[str]:
        """The command that makes it, anew if it is there."""
        return [self._below, "-c", _MAKE, str(self.folder)]

    def paths(self) -> list[str]:
        """Where imports should look first: what is installed here, editable projects with it."""
        site = self._site
        if site is None:
            return []
        folders = [str(site)]
        for file in sorted(site.glob("*.pth")):
            lines = file.read_text(errors="replace").splitlines()
            folders += [line for line in lines if line.startswith("/") and Path(line).is_dir()]
        return folders

    def environ(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment steps run in: `python` and `pip` are the overlay's."""
        kept = {name: value for name, value in env.items() if name not in _MISLEADING}
        path = env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{path}",
            "VIRTUAL_ENV": str(self.folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def lend(self) -> list[str]:
        """The command after which uv knows what is installed below."""
        return [self._below, "-c", _LEND, str(self._site), _LENT]

    def take_back(self) -> None:
        """What was lent is only true for uv: it goes when uv has ended."""
        site = self._site
        for mark in site.glob("*.dist-info/INSTALLER") if site else ():
            if mark.read_text(errors="replace") == _LENT:
                shutil.rmtree(mark.parent)

    def pip(self, words: Sequence[str]) -> list[list[str]]:
        """The commands that install `words` with pip."""
        # not `-m pip`, which would look for pip's own imports in the project first
        pip = [self.python, str(self.folder / "bin" / "_pip.py"), "install", "--no-input"]
        pip += ["--progress-bar", "off"]
        wheels = [word for word in words if word.endswith(_WHEEL)]
        # of a wheel pip compares the version only, and one under work keeps its version
        anew = [[*pip, "--force-reinstall", "--no-deps", *wheels]] if wheels else []
        return [*anew, [*pip, *words]]

    def uv(self, uv: str, words: Sequence[str]) -> list[str]:
        """The command that installs `words` with uv."""
        wheels = [Path(word).name.partition("-")[0] for word in words if word.endswith(_WHEEL)]
        anew = [word for name in wheels for word in ("--reinstall-package", name)]
        return [uv, "pip", "install", "--no-progress", "--python", self.python, *anew, *words]

    def find_uv(self, env: Mapping[str, str]) -> str | None:
        """uv, where it is there and nobody has told pip alone where packages come from."""
        told = {name for name in env if name.startswith("PIP_")} - _HARMLESS
        configs = [Path(name.replace("~", env.get("HOME", "/"), 1)) for name in _CONFIGS]
        configs.append(self.folder / "pip.conf")
        if env.get(_CONFIG) == os.devnull:  # for pip too this means: none
            told, configs = told - {_CONFIG}, []
        if told or any(path.exists() for path in configs):
            return None
        return shutil.which("uv", path=env.get("PATH"))
