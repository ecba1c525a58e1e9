"""GPUs of this machine: too few, shared between nodes and jobs, and pretended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from waits import wait_for

import windlass as wl
from windlass.engines.local import local_gpus
from windlass.engines.local.local_engine import is_lead_alive
from windlass.observe.doctor import check_all
from windlass.settings import read_settings

WINDLASS = [sys.executable, "-m", "windlass.cli.main"]


@pytest.fixture(autouse=True)
def machine(home, tmp_path, monkeypatch):
    """Create as many fake GPUs as the returned folder has files."""
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(local_gpus, "_DEVICES", f"{devices}/nvidia[0-9]*")
    monkeypatch.setattr(local_gpus, "_AMD_NODES", f"{devices}/amd*")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return devices


@pytest.fixture
def eight(machine):
    for number in range(8):
        (machine / f"nvidia{number}").touch()


def look(folder=""):
    """Return this rank's node and GPUs. With a folder, wait until it has a file `done`."""
    if folder:
        with open(f"{folder}/{os.environ['WINDLASS_JOB_ID']}-{os.environ['RANK']}", "a"):
            pass
        wait_for(lambda: os.path.exists(f"{folder}/done"), "done", 100)
    return int(os.environ["GROUP_RANK"]), os.environ.get("CUDA_VISIBLE_DEVICES")


def start(tmp_path, **asked):
    """Start a job and return it once its ranks have recorded their GPUs."""
    job = wl.submit(look, (str(tmp_path),), procs=1, grace_s=1, **asked)
    nodes = asked.get("nodes", 1)
    wait_for(lambda: len(list(tmp_path.glob(f"{job.id}-*"))) == nodes, "ranks", 60)
    return job


# -- too few ---------------------------------------------------------------------------------------


def test_machine_without_gpus_refuses(home):
    with pytest.raises(wl.SpecError, match=r"requested 1 GPU, but this machine has none"):
        wl.run(look, gpus=1, quiet=True)
    with pytest.raises(wl.SpecError, match="this machine has none"):
        wl.Compute(name="none", gpus=1, engine="local").up()
    assert not list((home / "jobs").glob("*")), "nothing is left"


def test_command_line_reports_missing_gpus(tmp_path, machine):
    (tmp_path / "train.py").write_text("print('trained')\n")
    line = [*WINDLASS, "run", "train.py", "--gpus", "1"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # hides GPUs of the tests' machine
    ran = subprocess.run(line, capture_output=True, text=True, check=False, env=hidden)
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    assert "requested 1 GPU, but this machine has" in ran.stderr
    assert "--pretend-gpus" in ran.stderr


def test_too_few(eight, monkeypatch):
    with pytest.raises(
        wl.SpecError, match=r"requested 16 GPUs for 2 nodes, but this machine has 8"
    ):
        wl.run(look, nodes=2, gpus=8, quiet=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,-1,4")
    few = r"requested 3 GPUs, .* 8, of which CUDA_VISIBLE_DEVICES=2,3,-1,4 leaves 2"
    with pytest.raises(wl.SpecError, match=few):
        wl.run(look, gpus=3, quiet=True)


@pytest.mark.parametrize(
    ("chosen", "usable"),
    [(None, "0 1 2 3 4 5 6 7"), ("", ""), ("5, 1", "5 1"), ("9,1", "1"), ("1,1", "1"),
     ("GPU-8932f937", "GPU-8932f937"), ("MIG-a/1/0,MIG-b", "MIG-a/1/0 MIG-b")],
)  # fmt: skip
def test_visible_gpus(eight, chosen, usable):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert list(local_gpus.list_gpus(environ)) == usable.split()


def test_gpus_known_only_to_nvidia_smi(machine, tmp_path):
    assert local_gpus.list_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) == ()
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        "#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-a)'\necho 'GPU 1: H200 (UUID: GPU-b)'\n"
    )
    smi.chmod(0o755)
    assert local_gpus.list_gpus({}) == ("0", "1")
    smi.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert local_gpus.list_gpus({}) == ()


def test_gpus_of_amd(machine):
    for number, gpu_id in enumerate((0, 4711, 4712)):  # the first entry is the CPU
        (machine / f"amd{number}").write_text(f"{gpu_id}\n")
    assert local_gpus.list_gpus({}) == ("0", "1")


# -- shares ----------------------------------------------------------------------------------------


def test_nodes_do_not_share_gpus(eight):
    results = wl.run(look, nodes=2, gpus=4, quiet=True)
    assert results == [(0, "0,1,2,3")] * 4 + [(1, "4,5,6,7")] * 4


def test_jobs_do_not_share_gpus(eight, tmp_path, monkeypatch):
    first = start(tmp_path, gpus=2)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "another"))
    second = start(tmp_path, gpus=2, nodes=2)
    shortage = rf"requested 3 GPUs, .* 2 of 8 here are free: {first.id} holds 0,1, {second.id} holds 2,3,4,5"
    with pytest.raises(wl.EngineError, match=shortage) as caught:
        wl.submit(look, gpus=3)
    assert f"windlass wait {first.id}" in caught.value.hint
    assert [path.name for path in (tmp_path / "another/jobs").iterdir()] == [second.id]
    (tmp_path / "done").touch()
    assert (first.results(), second.results()) == ([(0, "0,1")], [(0, "2,3"), (1, "4,5")])
    assert wl.run(look, gpus=8, procs=1, quiet=True) == [(0, "0,1,2,3,4,5,6,7")]


def test_killed_job_releases_its_gpus(eight, tmp_path):
    job = start(tmp_path, gpus=8)
    assert set(local_gpus.read_holders(tmp_path, is_lead_alive).values()) == {job.id}
    os.kill(job.status().nodes[0].pid, signal.SIGKILL)
    wait_for(lambda: not local_gpus.read_holders(tmp_path, is_lead_alive), "GPUs are free", 10)
    assert wl.run(look, gpus=1, quiet=True) == [(0, "0")]


@pytest.mark.long
def test_replaced_node_keeps_its_gpus(eight, tmp_path):
    job = start(tmp_path, gpus=3, nodes=2)
    os.kill(job.status().nodes[1].pid, signal.SIGKILL)
    wait_for(lambda: job.status().attempt == 1, "attempt 1", 60)
    (tmp_path / "done").touch()
    assert job.results() == [(0, "0,1,2"), (1, "3,4,5")]


@pytest.mark.long
def test_nodes_of_a_compute_do_not_share_gpus(eight):
    compute = wl.Compute(name="gpus", gpus=2, engine="local")
    try:
        remote = wl.fn(look).to(compute)
        assert remote() == (0, "0,1") or remote() == [(0, "0,1")] * 2
        grown = wl.fn(look).to(compute).distribute("pytorch", workers=3, procs=1)
        assert grown() == [(0, "0,1"), (1, "2,3"), (2, "4,5")]
        with pytest.raises(wl.EngineError, match="2 of 8 here are free"):
            wl.submit(look, gpus=3)
    finally:
        compute.teardown()


@pytest.mark.long
def test_compute_with_another_number_of_gpus_replaces_the_first(eight, capfd):
    wl.Compute(name="gpus", gpus=2, engine="local").up()
    compute = wl.Compute(name="gpus", gpus=8, engine="local")
    try:
        remote = wl.fn(look).to(compute).distribute("pytorch", workers=1, procs=1)
        assert remote() == [(0, "0,1,2,3,4,5,6,7")]
    finally:
        compute.teardown()
    assert "gpus: 2 -> 8" in capfd.readouterr().err


def test_two_ways_to_choose(eight):
    with pytest.raises(wl.SpecError, match="CUDA_VISIBLE_DEVICES=1 in the job's environment"):
        wl.run(look, gpus=1, env={"CUDA_VISIBLE_DEVICES": "1"}, quiet=True)
    assert wl.run(look, env={"CUDA_VISIBLE_DEVICES": "1"}, quiet=True) == [(0, "1")]


@pytest.mark.long
def test_damaged_ledger_is_replaced(eight, tmp_path):
    job = start(tmp_path, gpus=1)
    [ledger] = (tmp_path / "state/windlass").glob("gpus-*.json")
    assert list(json.loads(ledger.read_text()).values()) == [[str(job._engine._jobs / job.id), 0]]
    (tmp_path / "done").touch()
    job.wait(30)
    for text in ("", "{", "[1]", '{"0": 3}'):
        ledger.write_text(text)
        assert wl.run(look, gpus=1, quiet=True) == [(0, "0")]


# -- pretended -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["keyword", "variable", "file"])
def test_pretended_gpus_become_ranks_on_the_cpu(way, tmp_path, monkeypatch, capfd):
    given = {"pretend_gpus": True} if way == "keyword" else {}
    if way == "variable":
        monkeypatch.setenv("WINDLASS_PRETEND_GPUS", "1")
    if way == "file":
        (tmp_path / "windlass.toml").write_text("pretend_gpus = true\n")
    assert wl.run(look, gpus=2, **given) == [(0, "")] * 2
    assert capfd.readouterr().err.count("ranks use the CPU in place of 2 GPUs per node") == 1
    assert wl.submit(look, gpus=2, nodes=2, **given).results() == [(0, "")] * 2 + [(1, "")] * 2
    assert capfd.readouterr().err.count("ranks use the CPU in place of 2 GPUs per node") == 1


@pytest.mark.long
def test_pretended_gpus_of_a_compute_and_a_deployed_name(eight, capfd):
    compute = wl.Compute(name="pretended", gpus=2, pretend_gpus=True, engine="local")
    try:
        remote = wl.fn(look).to(compute).distribute("pytorch", workers=1)
        assert remote() == [(0, "")] * 2
        assert "in place of 2 GPUs per node" in capfd.readouterr().err
        wider = wl.fn(look).to(compute).distribute("pytorch", workers=2)
        assert wider() == [(0, "")] * 2 + [(1, "")] * 2
    finally:
        compute.teardown()


def test_pods_do_not_request_pretended_gpus(tmp_path):
    from windlass.client.jobs.node_settings import make_pod

    def make(**flags):
        flags = {"gpus": 2, "image": "a:1", **flags}
        return make_pod(read_settings(flags=flags, environ={}, start=tmp_path))

    assert (make().gpus, make(pretend_gpus=True).gpus) == (2, 0)


# -- doctor ----------------------------------------------------------------------------------------


def test_doctor_shows_gpus_and_their_owners(eight, tmp_path):
    job = start(tmp_path, gpus=1)
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200, 143771 MiB, 570.86.15'\n")
    smi.chmod(0o755)
    settings = read_settings(flags={"python": "missing"}, environ=os.environ, start=tmp_path)
    check = next(check for check in check_all(settings) if check.name == "gpus")
    (tmp_path / "done").touch()
    job.wait(30)
    assert check.found == f"8; 0: NVIDIA H200, 143771 MiB; driver 570.86.15; {job.id} holds 0"
