"""Apps. Every node runs a command, and a bare torchrun line forms one world."""

from __future__ import annotations

import os

import pytest
from wheels import make_wheel

import windlass as kt
from windlass.client.compute.resources.image import Image
from windlass.client.compute.resources.secret import Secret
from windlass.client.compute.resources.volume import Volume
from windlass.kube.objects.kinds import PVCS

TRAIN = """
import os, torch, torch.distributed as dist
from windlass.distributed import pod_ips

dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
world = (dist.get_rank(), dist.get_world_size(), int(os.environ["NODE_RANK"]), len(pod_ips()))
words = ("world", *world, int(total), os.environ["MASTER_PORT"], os.environ["NPROC_PER_NODE"])
print(" ".join(map(str, words)) + "\\n", end="")  # in one piece: torchrun's workers share a pipe
dist.destroy_process_group()
"""
SHOW = 'echo "$NNODES $NODE_RANK $PET_NNODES $PET_NODE_RANK $PET_MASTER_ADDR $NPROC_PER_NODE"'


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def engine(request, monkeypatch, tmp_path):
    """Create a project folder, and return an engine to run it on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "windlass.toml").touch()
    if request.param == "kubernetes":
        for name, value in request.getfixturevalue("space").settings.items():
            monkeypatch.setenv(name, value)
    else:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return request.param


@pytest.fixture
def deploy():
    """Deploy apps, and end the remaining ones on exit."""
    jobs: list[kt.Job] = []

    def deploy(app, **how):
        jobs.append(app.deploy(**how))
        return jobs[-1]

    yield deploy
    for job in jobs:
        job.cancel(now=True)
        job.wait(60)
        job.remove()


def lines_of(app) -> list[str]:
    return sorted(line.text for line in app.logs())


def test_a_bare_torchrun_line_forms_one_world(engine, deploy, tmp_path, monkeypatch):
    if engine == "local":
        monkeypatch.setenv("WINDLASS_PRETEND_GPUS", "1")
    (tmp_path / "train.py").write_text(TRAIN)
    command = "torchrun --nnodes=2 --nproc_per_node=2 train.py"
    app = kt.app(name="ddp-training", cli_command=command, gpus=2, replicas=2)
    job = deploy(app)
    assert job.id.startswith("ddp-training-")
    assert app.wait(150).phase.value == "succeeded", lines_of(app)
    words = [line.split() for line in lines_of(app) if line.startswith("world")]
    port = words[0][6]
    assert words == [
        ["world", str(rank), "4", str(rank // 2), "2", "6", port, "2"] for rank in range(4)
    ]
    assert (port == "29500") or engine == "local"


@pytest.mark.usefixtures("engine")
def test_the_command_runs_once_on_every_node(deploy, capsys):
    app = kt.app(name="show", cli_command=SHOW, replicas=2)
    deploy(app)
    assert app.wait(100).phase.value == "succeeded"
    words = [line.split() for line in lines_of(app)]
    address = words[0][4]
    assert words == [["2", str(node), "2", str(node), address, "1"] for node in range(2)]
    assert "windlass: show is " in capsys.readouterr().err


@pytest.mark.usefixtures("engine")
def test_the_steps_of_its_image_come_first(deploy, tmp_path):
    make_wheel(tmp_path / "wheels", "tiny", "1.0")
    image = Image().run("echo step").pip_install(["--no-index", "--find-links", "wheels", "tiny"])
    show = "import os, tiny; print(tiny.VERSION, os.environ['COLOR'])"
    app = kt.app(name="steps", cli_command=f'python -c "{show}"', image=image.env(COLOR="blue"))
    deploy(app)
    assert app.wait(100).phase.value == "succeeded", lines_of(app)
    assert {"step", "1.0 blue"} <= set(lines_of(app))
    failing = kt.app(name="failing", cli_command="echo ran", image=Image().run("false"))
    deploy(failing)
    assert failing.wait(100).phase.value == "failed"
    assert any("step 1 of 1" in line for line in lines_of(failing)), lines_of(failing)
    assert "ran" not in lines_of(failing)
    with pytest.raises(kt.StepFailed, match="step 1 of 1, false: exit code 1"):
        failing.job.result()


def test_volumes_and_secrets_are_available_and_hidden(
    engine, deploy, tmp_path, monkeypatch, request
):
    monkeypatch.setenv("API_KEY", "s3cr3t-value")
    monkeypatch.delenv("WINDLASS_VOLUMES", raising=False)
    volume = Volume(name="app-data", size="1Gi", mount_path="/data")
    show = """
import os
from windlass.distributed import volume_path
path = os.path.join(volume_path("app-data"), "made")
open(path, "w").write("by the app")
print(path, os.environ["API_KEY"][:6])
"""
    (tmp_path / "show.py").write_text(show)
    secret = Secret.from_env(["API_KEY"])
    app = kt.app(cli_command="python show.py", name="kept", volumes=[volume], secrets=[secret])
    if engine == "kubernetes":
        api = request.getfixturevalue("space").api
        request.addfinalizer(lambda: api.delete(PVCS, "app-data"))
    deploy(app)
    assert app.wait(100).phase.value == "succeeded", lines_of(app)
    (line,) = lines_of(app)
    path, start = line.split()
    assert (path.rpartition("/")[2], start) == ("made", "s3cr3t")
    folder = tmp_path / "home" / "volumes" / "app-data"
    assert path == ("/data/made" if engine == "kubernetes" else str(folder / "made"))
    for file in (tmp_path / "home").rglob("*"):
        if file.is_file():
            assert b"s3cr3t-value" not in file.read_bytes(), file


@pytest.fixture
def local(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.mark.usefixtures("local")
def test_nothing_starts_on_creation(home):
    app = kt.app(name="idle", cli_command="torchrun --nnodes=4 train.py", gpus=8, replicas=4)
    assert "App('idle', 'torchrun --nnodes=4 train.py', replicas=4)" in repr(app)
    with pytest.raises(kt.JobNotFound, match="app idle has not been deployed yet\n"):
        app.status()
    assert not home.exists()


@pytest.mark.usefixtures("local")
def test_name_runs_once_at_a_time(deploy, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    app = kt.app(name="only", cli_command=f"cat {fifo}")
    first = deploy(app)
    with pytest.raises(
        kt.SpecError, match=f"the app only is already running as local://{first.id}"
    ):
        kt.app(name="only", cli_command="true").deploy()
    second = deploy(kt.app(name="only", cli_command="true"), replace=True)
    assert first.status().phase.value == "cancelled"
    assert first.verdict().message == "only is deployed again"
    assert second.wait(60).phase.value == "succeeded"
    third = deploy(kt.app(name="only", cli_command="true"))  # the second one has ended
    assert third.wait(60).phase.value == "succeeded"


@pytest.mark.usefixtures("local")
def test_app_is_found_by_name_in_any_process(deploy):
    deploy(kt.app(name="found", cli_command="echo hello")).wait(60)
    again = kt.app(name="found", cli_command="echo hello")
    assert again.status().phase.value == "succeeded"
    assert lines_of(again) == ["hello"]


@pytest.mark.usefixtures("local")
def test_user_variables_win(deploy):
    own = {"NPROC_PER_NODE": "3", "PET_NNODES": "7"}
    app = kt.app(name="own", cli_command=SHOW, gpus=2, env=own, pretend_gpus=True)
    deploy(app).wait(60)
    assert lines_of(app) == ["1 0 7 0 127.0.0.1 3"]


def test_working_folder(engine, deploy, tmp_path):
    (tmp_path / "deep" / "sub").mkdir(parents=True)
    (tmp_path / "deep" / "sub" / "file").touch()
    app = kt.app(name="in-sub", cli_command="pwd", root="deep", working_dir="sub")
    deploy(app).wait(60)
    there = "/windlass/job/code" if engine == "kubernetes" else f"{tmp_path}/deep"
    assert lines_of(app) == [f"{there}/sub"]
    with pytest.raises(kt.SpecError, match="folder not found"):
        kt.app(cli_command="pwd", working_dir="none").deploy()


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
        ("a | b", ("sh", "-c", "a | b")),
        ("echo $(date) > out", ("sh", "-c", "echo $(date) > out")),
        ("cd x && torchrun t.py", ("sh", "-c", "cd x && torchrun t.py")),
        ("LR=1 python train.py", ("sh", "-c", "LR=1 python train.py")),
    ],
)
def test_commands_are_split_as_a_shell_would(command, argv):
    assert kt.app(cli_command=command).argv == argv


@pytest.mark.parametrize(
    ("command", "replicas", "nodes"),
    [
        ("torchrun --nnodes=4 t.py", None, 4),
        ("torchrun --nnodes 2 t.py", None, 2),
        ("torchrun --nnodes=2:4 t.py", None, 4),
        ("torchrun --nnodes=2:4 t.py", 3, 3),
        ("torchrun t.py", None, 1),
        ("torchrun --standalone --nnodes=1 t.py", 3, 3),
    ],
)
def test_number_of_nodes(command, replicas, nodes):
    assert kt.app(cli_command=command, replicas=replicas).replicas == nodes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cli_command": ""}, "cli_command is empty"),
        (
            {"cli_command": "echo 'a"},
            "cannot parse cli_command: No closing quotation\n  hint: close",
        ),
        ({"cli_command": ["a"]}, "must be a string"),
        (
            {"cli_command": "a", "replcas": 2},
            "no keyword 'replcas'\n  hint: did you mean 'replicas'",
        ),
        ({"cli_command": "a", "memry": 2}, "no keyword 'memry'\n  hint: did you mean 'memory'"),
        ({"cli_command": "a", "inactivity_ttl": 1}, "does not support inactivity_ttl"),
        ({"cli_command": "a", "replicas": 0}, "whole number of at least 1"),
        (
            {"cli_command": "torchrun --nnodes=4 t.py", "replicas": 2},
            r"has --nnodes=4, but 2 nodes would run it\n  hint: remove --nnodes",
        ),
    ],
)
def test_mistakes_are_reported_on_creation(given, expected):
    with pytest.raises(kt.SpecError, match=expected):
        kt.app(**given)


@pytest.mark.usefixtures("local")
def test_missing_command_is_reported_before_anything_starts(home):
    with pytest.raises(kt.SpecError, match="command 'no-such-thing' not found on this machine"):
        kt.app(cli_command="no-such-thing --now").deploy()
    assert not (home / "jobs").exists()
