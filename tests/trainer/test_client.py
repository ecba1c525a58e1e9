"""TrainerClient on this machine: the calls of v1 and v2, persistent names, and the errors of both."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from trainer.guide_run import GUIDE_JOB, run_guide
from trainer.trained import AWKWARD, make_failure, make_sum, make_wait
from waits import wait_for
from wheels import make_wheel

import windlass as wl
from windlass.trainer import (
    CustomTrainer,
    CustomTrainerContainer,
    LocalProcessBackendConfig,
    TrainerClient,
    TrainJobTemplate,
)
from windlass.trainer.options import ActiveDeadlineSeconds, Labels, Name, TrainerCommand


@pytest.fixture
def client(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    client = TrainerClient()
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


def test_it_logs_where_jobs_run(client, capsys):
    TrainerClient()
    output = capsys.readouterr().err.strip()
    assert client.engine == "local"
    assert output.startswith("windlass: TrainerClient uses the engine local (no kubeconfig found")
    assert "\n" not in output


def test_guide_runs_verbatim(client, home, tmp_path):
    assert "uses the engine local (no kubeconfig found" in run_guide(tmp_path / "project")
    client.delete_job(GUIDE_JOB)
    assert list((home / "jobs").iterdir()) == []


@pytest.mark.parametrize(("workers", "procs"), [(1, None), (1, 2), (2, 1), (2, 2), (4, None)])
def test_create_job(client, capsys, workers, procs):
    job = client.create_job(
        name="sums",
        train_func=make_sum(),
        base_image="docker.io/kubeflow/pytorch-dist-example:latest",
        num_workers=workers,
        num_procs_per_worker=procs,
        resources_per_worker={"cpu": "1", "memory": "2Gi"},
        env_vars={"OMP_NUM_THREADS": "1"},
    )
    assert job.name == "sums"
    assert job.status in ("Created", "Running", "Succeeded")
    client.stream_logs("sums")
    world = workers * (procs or 1)
    assert sorted(line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()) == [
        f"rank {rank} of {world}: {AWKWARD}" for rank in range(world)
    ]
    assert client.get_job_status("sums") == "Succeeded"
    assert job.results() == [(sum(range(world)) + 6.0, world, AWKWARD)] * world
    assert client.get_job("sums").num_nodes == workers


def test_parameters_are_one_argument_as_in_v1(client):
    def read(parameters):
        return parameters["lr"], parameters["name"]

    job = client.create_job("reads", train_func=read, parameters={"lr": 0.1, "name": AWKWARD})
    assert job.results(timeout_s=60) == [(0.1, AWKWARD)]


def test_train_and_its_result(client):
    before = datetime.now(timezone.utc)
    trainer = CustomTrainer(func=make_sum(), func_args={"more": 1}, num_nodes=2)
    name = client.train(runtime="torch-distributed", trainer=trainer, options=[Name("adds")])
    assert name == "adds"
    job = client.wait_for_job_status(name, timeout=120)
    assert (job.name, job.status, job.num_nodes) == ("adds", "Complete", 2)
    assert [(step.name, step.status) for step in job.steps] == [
        ("node-0", "Succeeded"),
        ("node-1", "Succeeded"),
    ]
    assert before <= job.creation_timestamp <= datetime.now(timezone.utc)
    assert job.results() == [(3.0 + 6.0, 2, AWKWARD)] * 2
    assert list(client.get_job_logs(name)) == [f"rank 0 of 2: {AWKWARD}"]
    assert list(client.get_job_logs(name, step="node-1", follow=True)) == [
        f"rank 1 of 2: {AWKWARD}"
    ]
    assert len(list(client.get_job_logs(name, step="all"))) == 2
    assert client.get_job_events(name)[0].reason == "submitted"
    assert client.list_jobs(client.get_runtime("torch-distributed")) == [job]


@pytest.mark.long
def test_unreadable_job_is_omitted_from_the_list(client, home, capsys):
    """An older version wrote this job. The others are listed anyway."""
    for name in ("one", "two"):
        client.create_job(name, train_func=print)
        client.wait_for_job_conditions(name)
    old_id = client.create_job("older", train_func=print).job.id
    client.wait_for_job_conditions("older")
    (path,) = [each for each in home.rglob("plan.json") if old_id in each.parts]
    text = path.read_text()
    path.write_text(text.replace('"peer_wait_s"', '"was_not_there"'))
    try:
        assert sorted(job.name for job in client.list_jobs()) == ["one", "two"]
        assert "skipping older: cannot read Plan" in capsys.readouterr().err
    finally:
        path.write_text(text)


def test_a_job_without_a_name_gets_one(client):
    name = client.train(**TrainJobTemplate(trainer=CustomTrainer(func=make_sum())))
    assert name.startswith("add-ranks-")
    assert client.wait_for_job_status(name).status == "Complete"


def test_processes_per_node_equal_its_cpus(client):
    trainer = CustomTrainer(func=make_sum(), num_nodes=2, resources_per_node={"cpu": 2})
    assert len(client.get_job(client.train(trainer=trainer)).results()) == 4


def test_failure_keeps_its_type(client, capsys):
    job = client.create_job("fails", train_func=make_failure(), num_workers=2)
    client.stream_logs("fails")
    assert "KeyError: 'boom'" in capsys.readouterr().err
    assert (job.status, client.get_job("fails").status) == ("Failed", "Failed")
    for read in (job.results, client.get_job("fails").results):
        with pytest.raises(KeyError, match="boom"):
            read()
    assert isinstance(job.exception(), KeyError)
    with pytest.raises(RuntimeError, match=r"job fails is Failed: .*boom") as caught:
        client.wait_for_job_status("fails")
    assert isinstance(caught.value, wl.JobError)
    with pytest.raises(RuntimeError, match="job fails is Failed"):
        client.wait_for_job_conditions("fails")
    assert client.wait_for_job_conditions("fails", {"Failed"}) is client._names.find("fails")


def test_waiting_times_out_and_calls_back(client, tmp_path):
    client.create_job("waits", train_func=make_wait(), parameters=str(tmp_path / "go"))
    seen = []
    client.wait_for_job_conditions("waits", {"Running"}, callback=lambda job: seen.append(job.name))
    assert set(seen) == {"waits"}
    with pytest.raises(TimeoutError, match=r"is Running after 0\.2 s, not Complete") as caught:
        client.wait_for_job_status("waits", timeout=0.2, polling_interval=0.1)
    assert isinstance(caught.value, wl.WaitTimeout)
    assert next(client.get_job_logs("waits", follow=True)) == "waiting"
    (tmp_path / "go").touch()
    statuses = []
    client.wait_for_job_status("waits", callbacks=[lambda job: statuses.append(job.status)])
    assert statuses[-1] == "Complete"


ELSEWHERE = """
from windlass.trainer import TrainerClient
client = TrainerClient(engine="local")
print(client.get_job_status("lasting"), client.get_job("lasting").results())
"""


@pytest.mark.long
def test_names_outlive_a_process(client, tmp_path):
    client.create_job("lasting", train_func=make_wait(), parameters=str(tmp_path / "go"))
    with pytest.raises(RuntimeError, match="job lasting already exists and is"):
        TrainerClient().create_job("lasting", train_func=print)
    (tmp_path / "go").touch()
    client.wait_for_job_status("lasting")
    ran = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "Succeeded ['went on']\n"
    with pytest.raises(RuntimeError, match="already exists and is Succeeded") as caught:
        TrainerClient().create_job("lasting", train_func=print)
    assert "client.delete_job('lasting')" in str(caught.value)


@pytest.mark.long
def test_only_an_ended_job_is_replaced(client, tmp_path):
    go = tmp_path / "go"
    first = client.create_job("again", train_func=make_wait(), parameters=str(go), replace=True)
    with pytest.raises(RuntimeError, match="job again already exists") as caught:
        client.create_job("again", train_func=print, replace=True)
    assert "replace=True" in str(caught.value)
    go.touch()
    client.wait_for_job_status("again")
    second = client.create_job("again", train_func=print, replace=True)
    assert second.results(timeout_s=60) == [None]
    assert client.get_job("again").results() == [None]
    assert [job.name for job in client.list_jobs()].count("again") == 1
    assert str(first.job.ref) != str(second.job.ref)


@pytest.mark.long
def test_concurrent_starts_of_one_name_refuse_one(client):
    """The refused start leaves the other job unchanged."""

    def start(_: int) -> object:
        try:
            return TrainerClient(engine="local").create_job("raced", train_func=print)
        except wl.WindlassError as error:
            return error.message

    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(start, range(4)))
    (job,) = [end for end in ends if not isinstance(end, str)]
    assert all("job raced already exists" in end for end in ends if isinstance(end, str))
    assert job.results(timeout_s=60) == [None]


def test_delete_ends_the_job_and_leaves_nothing(client, home, tmp_path):
    client.create_job("endless", train_func=make_wait(), parameters=str(tmp_path / "never"))
    client.wait_for_job_conditions("endless", {"Running"})
    client.delete_job("endless")
    assert client.list_jobs() == []
    assert list((home / "jobs").iterdir()) == []
    with pytest.raises(RuntimeError, match="job 'endless' not found"):
        client.get_job_status("endless")
    job = client.create_job("endless", train_func=print)
    assert job.results(timeout_s=60) == [None]


@pytest.mark.long
def test_packages_are_installed_for_every_rank(client, tmp_path):
    make_wheel(tmp_path, "tiny_package", "1.0", value=7)

    def read():
        import tiny_package

        return tiny_package.VALUE

    job = client.create_job(
        "packages",
        train_func=read,
        num_procs_per_worker=2,
        packages_to_install=["--no-index", "./tiny_package-1.0-py3-none-any.whl"],
    )
    assert job.results(timeout_s=120) == [7, 7]
    missing = CustomTrainer(func=read, packages_to_install=["--no-index", "no-such-package-here"])
    name = client.train(trainer=missing)
    assert client.wait_for_job_status(name, {"Failed"}).status == "Failed"
    with pytest.raises(wl.StepFailed, match="no-such-package-here"):
        client.get_job(name).results()


@pytest.mark.long
def test_restarts_are_a_setting(client, tmp_path):
    def fail_once():
        import os

        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("once")
        return os.environ["MINE"]

    client = TrainerClient(engine="local", env={"MINE": "client's", "OTHER": "1"}, restarts=1)
    assert client.create_job("again", train_func=fail_once).results(timeout_s=60) == ["client's"]
    job = client.create_job("mine", train_func=fail_once, env_vars={"MINE": "job's"})
    assert job.results(timeout_s=60) == ["job's"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.create_job("x", train_func=print, num_worker=1), "did you mean 'num_workers'"),
        (lambda c: c.create_job("x", train_func="train.py"), "train_func must be a function"),
        (
            lambda c: c.create_job("x", train_func=print, job_kind="TFJob"),
            "job_kind TFJob is not supported",
        ),
        (lambda c: c.create_job("x", train_func=print, num_ps_replicas=1), "no parameter servers"),
        (lambda c: c.create_job("My Job", train_func=print), "did you mean my-job?"),
        (lambda c: c.create_job("x" * 46, train_func=print), "at most 45"),
        (lambda c: c.create_job(3, train_func=print), "a job's name must be a string"),
        (lambda c: c.create_job("x", train_func=print, env_vars="A=1"), "variables must be a dict"),
        (lambda c: c.train(trainers=None), "did you mean 'trainer'?"),
        (lambda c: c.train(func=print), "trainer=CustomTrainer(func=...)"),
        (lambda c: c.train(name="x"), "options=[Name(...)]"),
        (lambda c: c.train(), "trainer= is missing"),
        (lambda c: c.train(trainer=print), "is not a supported trainer"),
        (lambda c: c.train(initializer=object()), "load data and models in the function"),
        (
            lambda c: c.train(runtime="torch", trainer=CustomTrainer(func=print)),
            "unknown runtime 'torch'",
        ),
        (lambda c: c.train(trainer=CustomTrainer(func="x")), "func must be a function"),
        (
            lambda c: c.train(
                trainer=CustomTrainer(func=print), options=[TrainerCommand(["torchrun"])]
            ),
            "are for a CustomTrainerContainer",
        ),
        (lambda c: c.train(trainer=CustomTrainerContainer("i:1")), "TrainerCommand(["),
        (
            lambda c: c.train(
                trainer=CustomTrainerContainer("i:1"), options=[TrainerCommand(["true"])]
            ),
            "needs a cluster",
        ),
        (lambda c: c.wait_for_job_status("x", {"Succeeded"}), "unknown status 'Succeeded'"),
        (lambda c: TrainerClient(namespac="x"), "did you mean 'namespace'?"),
        (lambda c: TrainerClient(backend_config="local"), "KubernetesBackendConfig(namespace=...)"),
    ],
)
def test_invalid_arguments_are_reported_and_nothing_starts(client, home, call, message):
    if "wait" in call.__code__.co_names[0]:
        client.create_job("x", train_func=print)
    with pytest.raises(ValueError) as caught:
        call(client)
    assert message in str(caught.value)
    assert isinstance(caught.value, wl.SpecError)
    assert not (home / "jobs").exists() or "wait" in call.__code__.co_names[0]


def test_function_with_wrong_arguments_leaves_nothing(client, home):
    with pytest.raises(wl.SpecError, match="cannot be called"):
        client.create_job("x", train_func=lambda: None, parameters={"a": 1})
    assert not (home / "jobs").exists()
    assert client.list_jobs() == []


def test_missing_step_is_reported(client):
    client.create_job("x", train_func=print)
    with pytest.raises(ValueError, match="the steps are node-0 to node-0, or all"):
        client.get_job_logs("x", step="dataset-initializer")


def test_backends(client):
    assert TrainerClient(LocalProcessBackendConfig()).engine == "local"


def test_an_option_is_a_setting(client):
    def wait():
        import time

        time.sleep(60)

    options = [Name("short"), ActiveDeadlineSeconds(1), Labels({"team": "a"})]
    client.train(trainer=CustomTrainer(func=wait), options=options)
    wait_for(lambda: client.get_job("short").status == "Failed", "its time is over")
    with pytest.raises(wl.JobTimeout):
        client.get_job("short").results()
