"""Tiny wheels, and an interpreter with them installed, to test package installation without an index."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, *, requires: tuple[str, ...] = (), value: int = 0
) -> Path:
    """Create a wheel of one module with `VERSION` and `VALUE`."""
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\nVALUE = {value}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


def make_python(folder: Path, *wheels: Path) -> str:
    """Create a virtual environment with these wheels and all packages of this interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    below = sysconfig.get_paths()["purelib"]
    (site / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return str(folder / "bin" / "python")
