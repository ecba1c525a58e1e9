"""`windlass deploy`, which imports a script, starts what it decorates, and prints one line each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

APPS = """
import windlass as kt

def show(nodes):
    return kt.app(name=f"show-{nodes}", cli_command="echo node $NODE_RANK of $NNODES", replicas=nodes)

one, two = show(1), show(2)
again = one

if __name__ == "__main__":
    raise SystemExit("this must not run")
"""


@pytest.fixture
def local(windlass, project, monkeypatch):
    """Run `windlass` without a cluster."""
    monkeypatch.setenv("KUBECONFIG", str(project / "none"))
    return windlass


def test_each_app_of_a_script_starts(local, project):
    (project / "my_apps.py").write_text(APPS)
    done = local("deploy", "my_apps.py")
    assert done.code == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[:2] for row in rows] == [["show-1", "app"], ["show-2", "app"]]
    for _, _, ref in rows:
        assert local("wait", ref).code == 0
    lines = sorted(local("logs", rows[1][2]).out.splitlines())
    assert lines == ["[0/0] node 0 of 2", "[1/1] node 1 of 2"]


def test_one_by_name_as_json(local, project):
    (project / "my_apps.py").write_text(APPS)
    done = local("deploy", "my_apps.py::show-2", "--json", "-e", "local")
    assert "(local: environment WINDLASS_ENGINE)" in done.err
    (found,) = json.loads(done.out)
    assert (found["name"], found["kind"]) == ("show-2", "app")
    assert local("wait", found["ref"]).code == 0


def test_running_app_is_replaced_only_on_request(local, project):
    (project / "stay.py").write_text(
        "import windlass as kt\napp = kt.app(name='stay', cli_command='tail -f /dev/null')\n"
    )
    first = local("deploy", "stay.py").out.split()[2]
    refused = local("deploy", "stay.py")
    assert refused.code == 2
    assert f"the app stay is already running as {first}" in refused.err
    second = local("deploy", "stay.py", "--replace").out.split()[2]
    assert second != first
    assert local("cancel", second).code == 0
    phases = {row["job_id"]: row["phase"] for row in json.loads(local("ls", "--json").out)}
    assert set(phases.values()) == {"cancelled"}


DECORATED = """
import windlass as kt

@kt.compute(name="deployed-nodes", inactivity_ttl="5m")
@kt.distribute(framework="spmd", workers=2)
def greet(word):
    import os
    return f"{word} from {os.environ['RANK']}"

if __name__ == "__main__":
    print(greet("hello"))
"""
CALL = """
import windlass as kt
print(kt.get("greet")("good day"))
kt.Compute(name="deployed-nodes").teardown()
"""


def test_decorated_function_is_called_by_name_from_anywhere(local, project, tmp_path):
    (project / "my_script.py").write_text(DECORATED)
    done = local("deploy", "my_script.py")
    assert done.code == 0, done.err
    name, kind, ref = done.out.split()
    assert (name, kind) == ("greet", "function")
    assert ref.startswith("local://deployed-nodes-")
    assert local("deploy", "my_script.py").out == done.out  # it runs already
    assert run_python(project / "my_script.py") == "['hello from 0', 'hello from 1']"
    (tmp_path / "elsewhere.py").write_text(CALL)
    assert run_python(tmp_path / "elsewhere.py") == "['good day from 0', 'good day from 1']"


SPREAD = """
import os
import windlass as kt

@kt.compute(name="spread-nodes", inactivity_ttl="5m", engine="local", {each})
@kt.distribute(framework="spmd", workers=2)
def place():
    return [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]

@kt.compute(name="spread-nodes", inactivity_ttl="5m", engine="local", {each})
@kt.distribute(framework="spmd", workers=2)
class Place:
    def find(self):
        return place.local()

if __name__ == "__main__":
    print(place())
"""
WAYS = """
import windlass as kt
place, kept = kt.get("place"), kt.get("Place")
print(place(), place.submit().results(), place.options(collect="all")(), kept.find())
print(place.distribute("spmd", workers=1)(), place.distribute("spmd", workers=1, procs=3)())
kt.Compute(name="spread-nodes").teardown()
"""


@pytest.mark.long
@pytest.mark.parametrize("each", ["gpus=2, pretend_gpus=True", "procs=2"])
def test_ranks_per_node_are_those_of_the_deployment(local, project, tmp_path, monkeypatch, each):
    """This holds for every way to call it, and for any settings of the caller."""
    (project / "my_script.py").write_text(SPREAD.format(each=each))
    done = local("deploy", "my_script.py")
    assert done.code == 0, done.err
    monkeypatch.setenv("WINDLASS_PROCS", "5")
    four = [[0, 0, 4], [1, 1, 4], [2, 0, 4], [3, 1, 4]]
    assert run_python(project / "my_script.py") == str(four)
    rows = json.loads(local("call", "--json", "place").out)
    assert [row["value"] for row in rows] == four
    (tmp_path / "elsewhere.py").write_text(WAYS)
    first, then = run_python(tmp_path / "elsewhere.py").splitlines()
    assert first == " ".join([str(four)] * 4)
    assert then == f"{[[0, 0, 2], [1, 1, 2]]} {[[0, 0, 3], [1, 1, 3], [2, 2, 3]]}"


def run_python(path):
    """Run a script from its folder, and return its output."""
    command = [sys.executable, path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("source", "words", "expected", "hint"),
    [
        ("x = 1\n", "bad.py", "nothing to deploy in bad.py", "decorate a function with"),
        (
            APPS,
            "bad.py::tow",
            "has no decorated function, class or app 'tow'",
            "did you mean two?",
        ),
        ("x = (\n", "bad.py", "bad.py, line 1: '(' was never closed", "correct that line"),
        (
            "\nraise ValueError('no')\n",
            "bad.py",
            "bad.py, line 2, raised ValueError: no",
            "__main__",
        ),
        ("import sys\nsys.exit(3)\n", "bad.py", "bad.py, line 2, raised SystemExit: 3", "__main__"),
        ("", "sys.py", "has the name of a module that is already loaded", "rename the script"),
        ("", "a.b.py", "'a.b' is not a valid module name", "rename it"),
        (None, "none.py", "script not found: none.py", ""),
    ],
)
def test_mistakes_are_reported(local, project, source, words, expected, hint):
    if source is not None:
        (project / words.partition("::")[0]).write_text(source)
    done = local("deploy", words)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert hint in done.err
