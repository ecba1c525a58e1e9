"""Adding a framework takes one file and one line in the table. The tests add one to a copy of Windlass."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import windlass

LINE = '    "spmd": "windlass.frameworks.spmd",\n'

# Always two ranks per node, its own variable and store, one return value, and its own blame rule.
DUO = """
import socket

from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework, RendezvousStore


def make_env(plan, rank, *, attempt, rendezvous):
    env = python_ranks.make_env(plan, rank, attempt=attempt, rendezvous=rendezvous)
    return {**env, "DUO_AT": f"{rendezvous.address}:{rendezvous.port}"}


def make_call_env(rendezvous):
    return {"DUO_AT": f"{rendezvous.address}:{rendezvous.port}"}


def serve(address, port, tell):
    with socket.create_server((address, port)) as listening:
        tell(listening.getsockname()[1])
        while True:
            guest, _ = listening.accept()
            guest.sendall(b"welcome")
            guest.close()


def share(variables, name_part):
    import os

    os.environ["DUO_PART"] = name_part()


FRAMEWORK = Framework(
    name="duo",
    preload=("colorsys",),
    takes_commands=True,
    gives_list=False,
    count_procs=lambda asked, kind: 2,
    make_env=make_env,
    make_call_env=make_call_env,
    store=RendezvousStore(is_wanted=lambda preload, num: num > 1, serve=serve, share=share),
    is_consequence=lambda error: "partner left" in error.message,
)
"""

WORK = """
import os, socket


def meet():
    host, _, port = os.environ["DUO_AT"].rpartition(":")
    with socket.create_connection((host, int(port)), 10) as store:
        greeting = store.recv(100).decode()
    part = os.environ.get("DUO_PART", "")
    return [os.environ["RANK"], os.environ["WORLD_SIZE"], greeting, bool(part)]


def fail():
    if os.environ["RANK"] == "0":
        raise RuntimeError("my partner left")
    raise ValueError("it was me")
"""

RUN = """
import json
import windlass as wl
from work import fail, meet

compute = wl.Compute(name="duo", engine="local")
try:
    warm = wl.fn(meet).to(compute).distribute("duo")()
finally:
    compute.teardown()
cold = wl.run(meet, nodes=2, procs=1, framework="duo", quiet=True)
try:
    wl.run(fail, framework="duo", quiet=True)
except Exception as error:
    blamed = repr(error)
print(json.dumps([wl.__file__, cold, warm, blamed]))
"""


@pytest.fixture
def place(tmp_path):
    """Copy the package with one more framework, and return a folder to work in."""
    package = tmp_path / "src" / "windlass"
    shutil.copytree(
        Path(windlass.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "frameworks" / "duo.py").write_text(DUO)
    table = package / "frameworks" / "framework.py"
    text = table.read_text()
    assert text.count(LINE) == 1
    table.write_text(text.replace(LINE, f"{LINE}{LINE.replace('spmd', 'duo')}"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "work.py").write_text(WORK)
    (folder / "run.py").write_text(RUN)
    return folder


def start(place, *words):
    env = {**os.environ, "PYTHONPATH": str(place.parent / "src"), "PYTHONSAFEPATH": ""}
    env["XDG_CACHE_HOME"] = str(place.parent / "cache")
    return subprocess.run(
        [sys.executable, *words], cwd=place, env=env, capture_output=True, text=True, timeout=240
    )


def test_jobs_and_computes_run_the_framework(place):
    answer = start(place, "run.py")
    assert answer.returncode == 0, answer.stderr
    file, cold, warm, blamed = json.loads(answer.stdout.splitlines()[-1])
    assert Path(file).is_relative_to(place.parent / "src")
    assert cold == ["0", "4", "welcome", False]
    assert warm == ["0", "2", "welcome", True]
    assert "it was me" in blamed


def test_command_line_knows_the_framework(place):
    words = ("-m", "windlass.cli.main", "run", "--framework")
    shown = start(place, *words, "duo", "--nodes", "2", "--dry-run", "--json", "work.py::meet")
    assert shown.returncode == 0, shown.stderr
    plan = json.loads(shown.stdout)
    assert (plan["framework"], plan["nodes"][0]["num_ranks"]) == ("duo", 2)
    wrong = start(place, *words, "duos", "work.py::meet")
    assert (wrong.returncode, "did you mean 'duo'?" in wrong.stderr) == (2, True)
