"""Attack: searching for a secret value in everything that others may see and in what a job leaves behind.

Searched are plans, process arguments, logs, status with its events, errors, and every file below the home.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from kept_files import files_with

PROGRAM = """
import hashlib, os, sys
import windlass as wl

def digest():
    return hashlib.sha256(os.environ["MY_TOKEN"].encode()).hexdigest()

def fail():
    raise RuntimeError("it failed")

def look(value):
    "Which processes of this machine show it among their arguments."
    import pathlib
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if value.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found

if __name__ == "__main__":
    compute = wl.Compute(name=sys.argv[1], secrets=[wl.Secret.from_file(".env")], inactivity_ttl=60)
    print(wl.fn(digest).to(compute)())
    try:
        wl.fn(fail).to(compute)()
    except RuntimeError as error:
        print(repr(error), file=sys.stderr)
    print(look(open(".env").read().strip().partition("=")[2]))
"""


@pytest.fixture
def value():
    return f"secret{secrets.token_hex(16)}"


def _windlass(cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windlass.cli.main", *argv]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_secret_of_a_compute_is_only_in_its_ranks(tmp_path, home, value, monkeypatch):
    import hashlib

    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    project = tmp_path / "project"
    project.mkdir()
    (project / "program.py").write_text(PROGRAM)
    (project / ".env").write_text(f"MY_TOKEN={value}\n")
    name = f"c-{secrets.token_hex(3)}"
    ran = subprocess.run(
        [sys.executable, "program.py", name],
        cwd=project, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    try:
        digest, shown = ran.stdout.split()
        assert digest == hashlib.sha256(value.encode()).hexdigest()
        assert shown == "[]"  # no process has it in its arguments
        assert value not in ran.stdout + ran.stderr
        [job] = [path.name for path in (home / "jobs").iterdir()]
        for argv in (["ls", "--json"], ["status", job, "--json"], ["logs", job], ["why", job],
                     ["compute", "ls"], ["config"]):  # fmt: skip
            shown_output = _windlass(project, *argv)
            assert value not in shown_output.stdout + shown_output.stderr, argv
    finally:
        ended = _windlass(project, "cancel", job, "--now")
    assert ended.returncode == 0, ended.stderr
    assert files_with(home, value) == []


def test_invalid_secret_name_does_not_reveal_the_value(tmp_path, value, monkeypatch):
    """The error names the invalid variable without revealing its value."""
    import windlass as wl

    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    (tmp_path / ".env").write_text(f"MY_TOKEN={value}\nBAD-NAME={value}\n")
    with pytest.raises(wl.WindlassError) as caught:
        wl.fn(json.dumps).to(wl.Compute(secrets=[wl.Secret.from_file(tmp_path / ".env")]))
    assert value not in str(caught.value)
    assert value not in repr(caught.value)
    assert value not in repr(wl.Secret.from_file(tmp_path / ".env"))
