"""Functions of a script on nodes with another Python.

They are found by file if the script guards its main part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.local_only

SCRIPT = """
import sys
import windlass as kt

class Wrong(Exception):
    pass

def helper():
    return sys.version_info[1]

def train(x):
    return x, helper()

def fail():
    raise Wrong("as asked")

class Adder:
    def __init__(self, base):
        self.base = base

    def add(self, number):
        return self.base + number, helper()

def main():
    compute = kt.Compute(name=sys.argv[1], python=sys.argv[2], inactivity_ttl=60)
    try:
        print(kt.fn(train).to(compute)(3))
        print(kt.cls(Adder, init_args=[1]).to(compute).add(2))
        try:
            kt.fn(fail).to(compute)()
        except Wrong as error:
            print("Wrong:", error)
    except kt.SpecError as error:
        print(error)
    finally:
        compute.teardown()

"""


def find_other() -> tuple[str, int]:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for path in sorted(versions.glob("3.1*/bin/python")):
        minor = int(path.parts[-3].split(".")[1])
        if minor >= 10 and minor != sys.version_info[1]:
            return str(path), minor
    pytest.skip("there is no other Python here")


def run(folder, last):
    python, minor = find_other()
    (folder / "windlass.toml").touch()
    (folder / "own_script.py").write_text(SCRIPT + last)
    words = [sys.executable, "own_script.py", "t-by-file", python]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, minor


def test_script_with_a_main_guard(on, tmp_path):
    out, minor = run(tmp_path, 'if __name__ == "__main__":\n    main()\n')
    assert out.splitlines() == [f"(3, {minor})", f"(3, {minor})", "Wrong: as asked"]


def test_script_without_a_main_guard_gets_a_hint(on, tmp_path):
    out, minor = run(tmp_path, "main()\n")
    assert f"but the nodes run 3.{minor}" in out
    assert 'if __name__ == "__main__":' in out
