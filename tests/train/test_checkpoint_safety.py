"""Checkpoints that another process removes during a save or load, and old and foreign contents."""

from __future__ import annotations

import collections
import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import fsspec
import numpy
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from toy_training import fill, make_state, train

from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint import checkpoint_commit
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.train.checkpoint.rank_shares import ShareReader
from windlass.train.checkpoint.state_encoding import (
    NeedsTrustError,
    decode,
    encode,
    load_entry,
    load_metadata,
)
from windlass.train.checkpoint.training_state import TensorAt, WrappedAt
from windlass.waiting import wait_until

OLD = Path(__file__).parent / "old_checkpoint"


@pytest.fixture
def checkpoints(tmp_path, alone):
    checkpoints = Checkpoints(tmp_path / "run", is_async=False, context=alone)
    yield checkpoints
    checkpoints.close()


# Disturbed saves.


def test_reader_removes_nothing_of_a_running_save(checkpoints, tmp_path, alone):
    """Another process loads during the save and removes nothing that it finds."""
    checkpoints.save(fill(make_state(), 1), step=1, facts={})
    under_way = tmp_path / "run/step-2.tmp-0-abcd/rank-0"
    under_way.mkdir(parents=True)
    (under_way / "0.distcp").write_bytes(b"half")
    reader = Checkpoints(tmp_path / "run", is_async=False, context=alone)
    assert reader.load(make_state()).step == 1
    assert (under_way / "0.distcp").exists()


def test_checkpoint_removed_while_read_is_replaced_by_another(
    checkpoints, tmp_path, alone, monkeypatch
):
    """Retention may remove the checkpoint between any two files. Files read before are not used."""
    generators = {}
    for step in (1, 2):
        state = fill(make_state(), step)
        generators[step] = torch.get_rng_state()
        checkpoints.save(state, step=step, facts={})
    work = ShareReader.read

    def remove_then_call(reader, targets):
        entries = work(reader, targets)
        # these files are read last
        if any(isinstance(entry, torch.Tensor) for entry in entries.values()):
            shutil.rmtree(tmp_path / "run/step-2", ignore_errors=True)
        return entries

    monkeypatch.setattr(ShareReader, "read", remove_then_call)
    state = fill(make_state(), 7)
    loaded = Checkpoints(tmp_path / "run", is_async=False, context=alone).load(state)
    assert (loaded.step, loaded.damaged) == (1, frozenset())
    assert torch.equal(torch.get_rng_state(), generators[1])
    assert torch.equal(state["model"][0].weight, fill(make_state(), 1)["model"][0].weight)


WRITER = """
    import sys, torch
    from windlass.train.checkpoint.checkpoints import Checkpoints

    checkpoints = Checkpoints(sys.argv[1])
    model = torch.nn.Linear(1000, 1000)
    for step in range(1, 13):
        with torch.no_grad():
            model.weight.fill_(step)
        checkpoints.save({"model": model}, step=step, facts={})
    checkpoints.close()
"""


@pytest.mark.long
def test_readers_during_a_training(tmp_path, alone):
    """Every load finds a complete checkpoint, and every checkpoint of the training is complete."""
    run = tmp_path / "run"
    trainer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), str(run)])
    try:
        model = torch.nn.Linear(1000, 1000)
        reader = Checkpoints(run, is_async=False, context=alone)
        assert wait_until(lambda: reader.latest is not None, timeout_s=100)
        while trainer.poll() is None:
            loaded = reader.load({"model": model})
            assert torch.all(model.weight == loaded.step)
        assert trainer.returncode == 0
    finally:
        trainer.kill()
        trainer.wait()
    assert reader.load({"model": model}).step == 12
    assert sorted(path.name for path in run.glob("step-*")) == ["step-11", "step-12"]


@pytest.mark.parametrize("moment", ["shares", "manifest"])
def test_deleted_folder_is_an_error_and_is_not_recreated(
    checkpoints, tmp_path, monkeypatch, moment
):
    """Nothing is published, good checkpoints stay, and no rank waits for shares that cannot arrive."""
    checkpoints.save(fill(make_state(), 1), step=1, facts={})
    checkpoints.save(fill(make_state(), 2), step=2, facts={})
    name = {"shares": "_wait_for_shares", "manifest": "write_manifest"}[moment]
    work = getattr(checkpoint_commit, name)

    def remove_then_call(*arguments):
        for path in (tmp_path / "run").glob("*.tmp-*"):
            shutil.rmtree(path)
        return work(*arguments)

    monkeypatch.setattr(checkpoint_commit, name, remove_then_call)
    with pytest.raises(EngineError, match=r"disappeared while it was written|No such file"):
        checkpoints.save(fill(make_state(), 3), step=3, facts={})
    monkeypatch.undo()
    assert sorted(p.name for p in (tmp_path / "run").glob("step-*")) == ["step-1", "step-2"]
    assert checkpoints.load(make_state()).step == 2


def test_file_deleted_before_the_manifest_is_an_error(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_commit, "_SLOW_S", 0.1)
    checkpoints.save(fill(make_state(), 1), step=1, facts={})
    work = checkpoint_commit.write_metadata

    def remove_then_call(*arguments):
        for path in (tmp_path / "run").glob("*.tmp-*/rank-0/0.distcp"):
            path.write_bytes(b"")
        return work(*arguments)

    monkeypatch.setattr(checkpoint_commit, "write_metadata", remove_then_call)
    with pytest.raises(EngineError, match=r"0\.distcp has 0 bytes instead of"):
        checkpoints.save(fill(make_state(), 2), step=2, facts={})
    assert sorted(p.name for p in (tmp_path / "run").glob("step-*")) == ["step-1"]


def test_all_files_are_synced_before_the_manifest(checkpoints, tmp_path, monkeypatch):
    """A power cut leaves either a complete checkpoint or none."""
    synced = []
    fsync = os.fsync

    def note(file):
        fsync(file)
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)

    monkeypatch.setattr(os, "fsync", note)
    checkpoints.save(make_state(), step=1, facts={})
    files = [path.name for path in (tmp_path / "run/step-1").rglob("*") if path.is_file()]
    files.remove("manifest.json")
    manifest = next(number for number, name in enumerate(synced) if ".manifest.json." in name)
    assert len(files) == 3
    assert set(files) <= set(synced[:manifest])


KILLED = """
    import sys, torch
    from windlass.train.checkpoint.checkpoints import Checkpoints

    checkpoints = Checkpoints(sys.argv[1], is_async=sys.argv[2] == "async")
    model = torch.nn.Linear(300, 300)
    loaded = checkpoints.load({"model": model})
    step = loaded.step if loaded else 0
    assert loaded is None or torch.all(model.weight == step)
    print("go", flush=True)
    while True:
        step += 1
        with torch.no_grad():
            model.weight.fill_(step)
        checkpoints.save({"model": model}, step=step, facts={})
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_kills_at_random_times_lose_no_checkpoint(tmp_path, alone, kind):
    draw = random.Random(5)
    reader = Checkpoints(tmp_path, is_async=False, context=alone)
    model, last = torch.nn.Linear(300, 300), 0
    for _ in range(8):
        trainer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), kind],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert trainer.stdout.readline() == "go\n"
        assert wait_until(lambda last=last: (reader.latest or 0) > last, timeout_s=60)
        time.sleep(draw.uniform(0, 0.3))  # choose the time of the kill
        trainer.kill()
        trainer.communicate()
        loaded = reader.load({"model": model})
        assert loaded.step > last
        assert torch.all(model.weight == loaded.step)
        last = loaded.step


def test_wait_for_shares_names_the_rank(checkpoints, caplog, monkeypatch):
    monkeypatch.setattr("windlass.waiting._SAY_EVERY_S", 0.05)
    checkpoints._timeout_s = 0.5
    read = checkpoint_commit.read_share
    monkeypatch.setattr(checkpoint_commit, "read_share", lambda *_: None)
    with pytest.raises(EngineError, match=r"no share from rank 0 after|not written in time"):
        checkpoints.save(make_state(), step=1, facts={})
    assert "step-1: waiting for the share of rank 0" in caplog.text
    assert "waiting until step-1 is written" in caplog.text
    monkeypatch.setattr(checkpoint_commit, "read_share", read)


def test_sigterm_ends_the_wait_for_a_save(checkpoints, alone, monkeypatch):
    alone.preemption.grace_s = 0.2
    monkeypatch.setattr(checkpoint_commit, "read_share", lambda *_: None)
    state = make_state()  # the writer imports for about a second
    checkpoints.claim()
    threading.Timer(0.3, alone.preemption.notice).start()
    with pytest.raises(EngineError, match="step-1 was not written in time"):
        checkpoints.save(state, step=1, facts={})


def test_sigterm_before_the_wait_for_a_save_ends_it(checkpoints, alone, monkeypatch):
    """The signal can arrive while this rank still waits for the others to save."""
    alone.preemption.grace_s = 0.2
    write = Checkpoints._make_commit

    def write_after_notice(*arguments, **keywords):
        alone.preemption.notice()
        return write(*arguments, **keywords)

    monkeypatch.setattr(Checkpoints, "_make_commit", write_after_notice)
    monkeypatch.setattr(checkpoint_commit, "read_share", lambda *_: None)
    with pytest.raises(EngineError, match="step-1 was not written in time"):
        checkpoints.save(make_state(), step=1, facts={})


def test_the_first_save_is_waited_for(tmp_path, alone):
    """A crash loses everything until the first checkpoint is complete."""
    checkpoints = Checkpoints(tmp_path, context=alone)
    assert checkpoints.safe_step is None
    checkpoints.save(make_state(), step=1, facts={})
    assert checkpoints.latest == 1
    assert wait_until(lambda: checkpoints.safe_step == 1, timeout_s=10)
    checkpoints.close()


# Object stores that cache for a while that an object was missing.


class ForgetfulStore(MemoryFileSystem):
    protocol = "forgetful"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs: list = [""]  # noqa: RUF012
    missed: set = set()  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("forgetful://", "memory://", 1))

    def _ask(self, path, answer):
        path = self._strip_protocol(path)
        if path in self.missed:
            raise FileNotFoundError(path)
        try:
            return answer()
        except FileNotFoundError:
            self.missed.add(path)
            raise

    def cat_file(self, path, *arguments, **keywords):
        return self._ask(
            path, lambda: MemoryFileSystem.cat_file(self, path, *arguments, **keywords)
        )

    def info(self, path, **keywords):
        return self._ask(path, lambda: MemoryFileSystem.info(self, path, **keywords))


def test_store_that_caches_misses_loses_nothing(alone):
    fsspec.register_implementation("forgetful", ForgetfulStore, clobber=True)
    checkpoints = Checkpoints("forgetful://bucket/run", is_async=False, context=alone)
    for step in (1, 2, 3):
        checkpoints.save(fill(make_state(), step), step=step, facts={})
        # Another client looks up an object too early, and the store caches the miss.
        ForgetfulStore.missed.add(f"/bucket/run/step-{step + 1}/manifest.json")
    there = {name.split("/")[3] for name in ForgetfulStore.store if "/step-" in name}
    assert {"step-2", "step-3"} <= there
    ForgetfulStore.missed.clear()
    assert checkpoints.load(make_state()).step == 3
    checkpoints.close()


# Contents.


class Own:
    def __init__(self):
        self.value = {}

    def state_dict(self):
        return self.value

    def load_state_dict(self, value):
        self.value = value


@pytest.mark.parametrize("trusted", [False, True])
def test_a_checkpoint_of_an_earlier_version_is_loaded(tmp_path, alone, trusted):
    """The fixture comes from the last version that pickled. It has optimizer, schedules and random state."""
    shutil.copytree(OLD, tmp_path / "run")
    state = make_state(seed=1)
    sgd = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    state["steps_at"] = torch.optim.lr_scheduler.MultiStepLR(sgd, milestones=[9])
    state["own"] = Own()
    folder = tmp_path / "run"
    checkpoints = Checkpoints(folder, is_async=False, trust_checkpoint=trusted, context=alone)
    loaded = checkpoints.load(state)
    assert (loaded.step, loaded.is_rng_restored) == (3, True)
    drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    assert drawn == [0.32383276483316237, 0.07630828937395717, 0.7792044281959534]
    assert state["model"][0].bias[:2].tolist() == [-0.5743752717971802, 0.3682340383529663]
    first = next(iter(state["optimizer"].state.values()))
    assert first["step"].item() == 3.0
    assert first["exp_avg"][0, :2].tolist() == [-0.012939565815031528, 0.01296849176287651]
    assert state["optimizer"].param_groups[0]["lr"] == 0.001
    assert state["schedule"].last_epoch == 3
    assert state["steps_at"].milestones == collections.Counter([2, 4])
    assert torch.equal(state["own"].value.pop("tensor"), torch.arange(3.0))
    assert state["own"].value == {"numbers": (1, 2.5, None, True), "by_number": {1: "one"}}
    train(state, num_steps=1)


class Touch:
    """Object that creates a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def test_user_objects_need_trust(tmp_path, alone):
    mark = tmp_path / "mark"
    state = {**make_state(), "own": Own()}
    state["own"].value = {"a": [Touch(mark)]}
    with pytest.raises(
        NeedsTrustError, match=r"own\.a\.0 is a .*Touch, which only pickle can save"
    ):
        Checkpoints(tmp_path / "run", is_async=False, context=alone).save(state, step=1, facts={})
    trusting = Checkpoints(tmp_path / "run", is_async=False, context=alone, trust_checkpoint=True)
    trusting.save(state, step=1, facts={})
    with pytest.raises(SpecError, match=r"own~ contains a pickled object(.|\n)*--trust-checkpoint"):
        Checkpoints(tmp_path / "run", is_async=False, context=alone).load(state)
    assert not mark.exists()
    trusting.load(state)
    assert mark.exists()


@pytest.mark.parametrize("trick", ["call", "class", "files"])
def test_metadata_executes_no_code(tmp_path, trick):
    mark = tmp_path / "mark"
    real = (OLD / "step-3/.metadata").read_bytes()
    files = {"rank-0/0.distcp"}
    metadata = load_metadata(real, files)
    if trick == "call":
        metadata.planner_data = Touch(mark)
        data = pickle.dumps(metadata)
    elif trick == "class":  # an attribute of a class
        kind = "torch.distributed.checkpoint.metadata"
        data = f"c{kind}\nMetadataIndex\n(N(dS'fqn'\nI1\nstb.".encode()
    else:
        data, files = real, {"other"}
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        load_metadata(data, files)
    assert not mark.exists()
    assert load_metadata(real, {"rank-0/0.distcp"}).storage_data  # the classes are unchanged


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorAt, "windlass.train.checkpoint_state TensorAt"),
        (WrappedAt, "windlass.train.wrapped_tensors WrappedAt"),
    ],
)
def test_old_entries_find_classes_in_moved_modules(kind, name, allow_pickle):
    data = b"c%s\n%s\n." % tuple(name.encode().split())
    assert load_entry(data, name="own~", allow_pickle=allow_pickle) is kind


def test_old_entries_execute_no_code(tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(NeedsTrustError, match=r"own~ contains a .*mkdir"):
        load_entry(pickle.dumps({"a": Touch(mark)}), name="own~", allow_pickle=False)
    assert not mark.exists()
    number = load_entry(pickle.dumps(numpy.float64(2.5)), name="own~", allow_pickle=False)
    assert number == 2.5


def test_values_round_trip():
    values = [
        *(None, True, 1, 1 << 100, -0.5, float("inf"), "text", b"bytes", 1 + 2j),
        *((1, (2,)), {1: "a", "b": [2]}, {"~": 1}, {1, 2}, frozenset({3})),
        *(torch.float32, torch.Size([1, 2]), torch.device("cpu"), numpy.float32(1.5)),
        *(collections.Counter([1]), collections.OrderedDict(a=1), collections.deque([1], 3)),
        collections.defaultdict(list, {"a": [1]}),
    ]
    back = decode(encode(values, name="values"), name="values")
    assert back == values
    assert [type(value) for value in back] == [type(value) for value in values]
    array = numpy.arange(6, dtype="int16").reshape(2, 3)
    assert numpy.array_equal(decode(encode(array, name="a"), name="a"), array)


@pytest.mark.parametrize(
    "data",
    [
        b'{"~": "class", "module": "os", "name": "system"}',
        b'{"~": "class", "module": "antigravity", "name": "x"}',
        b'{"~": "torch", "name": "load"}',
        b'{"~": "scalar", "dtype": "O", "shape": [], "data": "AAAAAAAAAAA="}',
        b'{"~": "WrittenShare"}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_foreign_values_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        decode(data, name="own~")
    assert "antigravity" not in sys.modules
