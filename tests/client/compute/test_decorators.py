"""Decorated functions and classes. They start when they are deployed, and are plain inside ranks."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys

import cloudpickle
import pytest

import windlass as kt

MODULE = """
import os
import windlass as kt

NODES = dict(name="decorated-tests", inactivity_ttl="5m")

@kt.compute(**NODES)
@kt.distribute(framework="spmd", workers=2)
def train(word, *, times=1):
    "What it does."
    return word * times, os.environ.get("RANK"), type(train).__name__

@kt.distribute("spmd", workers=2)
@kt.compute(**NODES)
class Counter:
    def __init__(self, start, *, step=1):
        self.count, self.step = start, step

    def add(self, timeout=0):
        self.count += self.step
        return self.count, timeout, os.environ["RANK"]

@kt.compute(**NODES)
def alone(word):
    return word, os.environ["WORLD_SIZE"]

class Other(Counter):
    pass
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import source as a module that ranks can import as well."""
    (tmp_path / "windlass.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    names: list[str] = []

    def load(source: str, name: str = "decorated_here"):
        (tmp_path / f"{name}.py").write_text(source)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def module(request, load, monkeypatch, tmp_path):
    """Deploy the module above on an engine, and remove its nodes on exit."""
    if request.param == "kubernetes":
        monkeypatch.undo()
        monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        for name, value in request.getfixturevalue("space").settings.items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("WINDLASS_ENGINE", request.param)
    module = load(MODULE)
    yield module
    for found in (module.train, module.alone, module.Counter):
        if "not deployed" not in repr(found):
            found.teardown()
    kt.Compute(name="decorated-tests").teardown()


def test_after_deploy_calls_go_to_the_ranks(module):
    remote = module.train.deploy()
    assert remote.name == "train"
    plain = [("aa", str(rank), "function") for rank in range(2)]
    assert module.train("a", times=2) == plain
    assert module.train.local("a") == ("a", None, "Decorated")
    assert module.train.submit("a", times=2).results() == plain
    again = module.alone.deploy()
    assert again("hello") == module.alone("hello") == ("hello", "1")


def test_class_instance_stays_on_its_ranks(module):
    counter = module.Counter(5, step=2)
    assert counter.add() == [(7, 0, "0"), (7, 0, "1")]
    assert module.Counter.add(timeout=3) == [(9, 3, "0"), (9, 3, "1")]
    assert module.Counter(1).add() == [(2, 0, "0"), (2, 0, "1")]
    assert module.Counter.local(1).count == 1


def test_nothing_starts_when_a_module_is_imported(load, home):
    module = load(MODULE)
    assert module.train.__doc__ == "What it does."
    assert str(inspect.signature(module.train)) == "(word, *, times=1)"
    assert "not deployed here" in repr(module.train)
    assert module.Other(3).count == 3  # a subclass is a separate class, which runs locally
    assert not home.exists()


def test_call_without_deployment_has_a_hint(load):
    module = load(MODULE)
    with pytest.raises(
        kt.SpecError, match="train is not deployed\n  hint: run `windlass deploy "
    ) as error:
        module.train("a")
    assert "train.local(...) runs it here" in error.value.hint


def test_importable_function_is_sent_by_name(load, monkeypatch):
    module = load(MODULE)
    sent = cloudpickle.dumps((module.train, module.Counter))
    assert b"decorated_here" in sent
    assert len(sent) < 100
    del sys.modules["decorated_here"]
    monkeypatch.setenv("WINDLASS_JOB_ID", "as-in-a-rank")
    function, cls = pickle.loads(sent)
    assert inspect.isfunction(function)
    assert function.local is function
    assert inspect.isclass(cls)


def test_local_function_is_sent_by_value():
    @kt.distribute(workers=2)
    def count(number):
        return 0 if number == 0 else 1 + count(number - 1)

    assert type(count).__name__ == "Decorated"
    plain = pickle.loads(cloudpickle.dumps(count))
    assert inspect.isfunction(plain)
    assert plain(3) == 3


def test_decorators_come_in_any_order_and_number():
    def plain():
        return "here"

    class Plain:
        pass

    for target in (plain, Plain):
        both = kt.compute(gpus=8)(kt.distribute("pytorch", workers=2)(target))
        other = kt.distribute(framework="pytorch", workers=2)(kt.compute(gpus=8)(target))
        assert both.marks == other.marks
        assert kt.compute(target).marks.compute == {}
        assert kt.distribute(target).marks.distribute == {}
        assert kt.distribute(workers=2)(target).marks.compute is None
        assert (
            kt.distribute("", workers=2)(target).marks.distribute["framework"] == ""
        )  # the setting decides
    assert kt.compute(plain).local() == "here"


@pytest.mark.parametrize(
    ("decorate", "error"),
    [
        (lambda: kt.compute(gpu=8), "Compute has no keyword 'gpu'\n  hint: did you mean 'gpus'"),
        (lambda: kt.distribute(worker=2), "no keyword 'worker'\n  hint: did you mean 'workers'"),
        (
            lambda: kt.distribute("pytroch"),
            "unknown framework 'pytroch'\n  hint: did you mean 'pytorch'",
        ),
        (lambda: kt.distribute(workers=0), "workers must be at least 1"),
        (lambda: kt.compute(gpus=1)(3), "only functions and classes can be decorated, not 3"),
        (lambda: kt.compute(8), "only functions and classes can be decorated, not 8"),
        (
            lambda: kt.compute(gpus=1)(kt.compute(gpus=2)(len.__class__)),
            "is decorated with @compute twice",
        ),
    ],
)
def test_mistakes_are_reported_at_the_decorator(decorate, error):
    with pytest.raises(kt.SpecError, match=error):
        decorate()
