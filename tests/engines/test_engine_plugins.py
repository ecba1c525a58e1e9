"""Engines of other packages: found by name and loaded on use. A broken one raises a single error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from plugin_packages import PLUGINS, install, write
from windlass_statefulset import STATEFUL_SET

import windlass as wl
from windlass.client.jobs.find_jobs import list_jobs
from windlass.engines.engine_table import (
    check_engine_name,
    engine_names,
    find_dialect,
    make_engine,
    renderer_names,
)
from windlass.errors import EngineMissing, SpecError
from windlass.settings import read_settings_here

WINDLASS = [sys.executable, "-m", "windlass.cli.main"]
IMAGE = ["--image", "registry.example/torch:1"]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Yield a folder of installed packages, for this process and those it starts."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return folder


@pytest.fixture
def nice_engine(site):
    install(PLUGINS / "windlass-nice", site)
    return "nice"


def run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WINDLASS, *words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def settings(**flags):
    return read_settings_here(flags)


# -- a dialect -------------------------------------------------------------------------------------


def test_dialect_of_a_package_is_an_engine(stateful_engine):
    engine = make_engine(stateful_engine, settings())
    assert (engine.name, engine.can) == ("stateful", STATEFUL_SET.can)
    assert find_dialect(stateful_engine) == STATEFUL_SET
    assert engine_names()[-1] == "stateful"
    assert renderer_names()[-1] == "stateful"


def test_engine_can_be_named_in_every_way(stateful_engine, tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    export = ("export", "train.py", *IMAGE, "--nodes", "2")
    by_flag = run(*export, "-e", "stateful", cwd=tmp_path)
    by_variable = run(*export, cwd=tmp_path, WINDLASS_ENGINE="stateful")
    (tmp_path / "windlass.toml").write_text('engine = "stateful"\n')
    by_file = run(*export, cwd=tmp_path)
    for ran in (by_flag, by_variable, by_file):
        assert ran.returncode == 0, ran.stderr
        documents = list(yaml.safe_load_all(ran.stdout))
        (body,) = [one for one in documents if one["kind"] == "StatefulSet"]
        assert body["spec"]["replicas"] == 2


def test_role_is_printed(stateful_engine, tmp_path):
    ran = run("doctor", "--role", "-e", "stateful", cwd=tmp_path)
    rules = yaml.safe_load(ran.stdout)["rules"]
    assert any("statefulsets" in rule["resources"] for rule in rules)


def test_engine_is_listed(stateful_engine, tmp_path):
    rows = json.loads(run("engines", "--json", cwd=tmp_path).stdout)
    assert [row["makes"] for row in rows if row["name"] == "stateful"] == ["pods of a StatefulSet"]


def test_reference_finds_the_engine(stateful_engine):
    assert wl.attach("stateful://space/train-ab2cd").ref.engine == "stateful"


# -- an engine of its own --------------------------------------------------------------------------


def read_niceness() -> int:
    return os.nice(0)


def test_an_engine_that_starts_agents_by_a_shell_command(nice_engine, home):
    before = os.nice(0)
    job = wl.submit(read_niceness, engine=nice_engine, nodes=2)
    assert job.results() == [min(19, before + 10)] * 2
    assert str(job.ref) == f"nice://{job.id}"
    assert (home / "nice" / job.id).is_dir()
    job.remove()
    assert wl.jobs() == []


def test_jobs_are_found_without_naming_the_engine(nice_engine, tmp_path):
    job = wl.submit(["sleep", "600"], engine=nice_engine, name="rest")
    for words in (("ls", "--json"), ("status", job.id), ("logs", "rest"), ("why", str(job.ref))):
        ran = run(*words, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
    assert run("cancel", job.id, cwd=tmp_path).returncode == 0
    assert wl.attach(job.id).wait(30).phase.value == "cancelled"
    assert run("rm", job.id, cwd=tmp_path).returncode == 0
    assert list_jobs(settings()) == []


CALLS = """
import os
import windlass as wl

def read_niceness():
    return os.nice(0)

if __name__ == "__main__":
    compute = wl.Compute(engine="nice", name="calm")
    print(wl.fn(read_niceness).to(compute)())
    compute.teardown()
"""


def test_engine_keeps_computes(nice_engine, tmp_path):
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [str(min(19, os.nice(0) + 10))])


def test_pod_settings_are_refused(nice_engine):
    with pytest.raises(SpecError, match="--queue is for pods, but the engine nice has none"):
        wl.submit(read_niceness, engine=nice_engine, queue="x")


def test_contract_suite_runs_on_the_engine(nice_engine, tmp_path):
    ran = run("conformance", "-e", "nice", "-k", "is_reported or dialect", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "passed" in [row["result"] for row in json.loads(ran.stdout)]


# -- faults ----------------------------------------------------------------------------------------


def test_error_for_an_unknown_engine_lists_plugins(stateful_engine):
    with pytest.raises(SpecError) as caught:
        check_engine_name("x" * 20)
    assert caught.value.hint.endswith("statefulset, stateful")


FAULTS = {
    "raise RuntimeError('no driver')": "cannot be loaded: RuntimeError: no driver",
    "": "cannot be loaded: AttributeError: module 'broken_engine' has no attribute 'ENGINE'",
    "ENGINE = 3": "is a int, neither a Dialect nor a class of engines",
    "def ENGINE(settings): raise OSError('no socket')": "cannot be made: OSError: no socket",
    "class ENGINE:\n    def __init__(self, settings): self.name = 'other'": "calls itself 'other'",
    "class ENGINE:\n    name, can = 'broken', ()\n    def __init__(self, settings): pass": (
        "lacks members of the engine protocols: facts, render, submit"
    ),
    "from windlass_statefulset import STATEFUL_SET as ENGINE": "calls itself 'stateful'",
}


@pytest.mark.parametrize(("source", "fault"), FAULTS.items(), ids=lambda text: text[:30])
def test_broken_package_raises_one_error_that_names_it(site, monkeypatch, source, fault):
    monkeypatch.delitem(sys.modules, "broken_engine", raising=False)
    write(site, "acme-broken", {"broken": "broken_engine:ENGINE"}, {"broken_engine": source})
    with pytest.raises(EngineMissing) as caught:
        make_engine("broken", settings())
    assert f"the engine 'broken' of the package acme-broken 0.1.0 {fault}" in caught.value.message
    assert caught.value.hint == "run `pip install --upgrade acme-broken`, or use another engine"


def test_broken_package_does_not_affect_other_engines(site, home, tmp_path):
    write(site, "acme-broken", {"broken": "broken_engine:E"}, {"broken_engine": "raise OSError"})
    (home / "broken").mkdir(parents=True)
    listed = run("ls", cwd=tmp_path)
    assert listed.returncode == 0
    assert "acme-broken 0.1.0 cannot be loaded: OSError: its jobs are not" in listed.stderr
    rows = json.loads(run("engines", "--json", cwd=tmp_path).stdout)
    (row,) = [row for row in rows if row["name"] == "broken"]
    assert "cannot be loaded" in row["version"]
    asked = run("ls", "-e", "broken", cwd=tmp_path)
    assert (asked.returncode, "cannot be loaded" in asked.stderr) == (3, True)


def test_two_packages_with_the_same_engine(site):
    for package in ("acme-one", "acme-two"):
        write(site, package, {"twin": "windlass_statefulset:STATEFUL_SET"}, {})
    with pytest.raises(EngineMissing, match=r"acme-\w+ 0.1.0 and acme-\w+ 0.1.0 both provide"):
        make_engine("twin", settings())


@pytest.mark.parametrize("name", ["local", "kubernetes", "statefulset", "jobs", "../x", "Big"])
def test_taken_or_invalid_name_is_ignored_with_a_warning(site, caplog, name):
    write(site, "acme-taken", {name: "no_module:ENGINE"}, {})
    before = engine_names()
    assert f"the package acme-taken 0.1.0 adds an engine '{name}'" in caplog.text
    assert make_engine("local", settings()).name == "local"
    assert len(before) == len(set(before))


# -- costs -----------------------------------------------------------------------------------------

LOOK = """
import sys
import windlass
from windlass.cli.main import main
sys.argv = ["windlass", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
table = sys.modules.get("windlass.engines.engine_table")
assert table is None or table._scan_plugins.cache_info().misses == 0, "packages were looked through"
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["ls"],
        ["run", "-q", "train.py"],
        ["export", "train.py", "-e", "kubernetes", *IMAGE],
    ],
    ids=lambda words: words[0],
)
def test_packages_are_not_scanned_for_built_in_engines(nice_engine, tmp_path, words):
    (tmp_path / "train.py").write_text("print(1)\n")
    ran = subprocess.run(
        [sys.executable, "-c", LOOK, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
