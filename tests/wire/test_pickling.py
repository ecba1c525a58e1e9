"""Pickled values. Those that cannot be pickled are named by their path, with a reason."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import io
import pickle
import socket
import subprocess
import sys
import threading

import pytest
import torch

from windlass.errors import BundleError
from windlass.wire import payloads, pickling

LOCK = threading.Lock()
FINE = 3


@dataclasses.dataclass(slots=True)
class Slotted:
    thing: object


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    thing: object


class Discreet(dict):
    """Omits its lock from the pickle, and keeps its items."""

    def __init__(self, **things):
        super().__init__(things)
        self.lock = threading.Lock()

    def __reduce__(self):
        return type(self), (), None, None, iter(self.items())


def nest(value, depth):
    for _ in range(depth):
        value = [value]
    return value


class Box:
    def __init__(self, **things):
        vars(self).update(things)

    def method(self):
        return self


def by_value(function):
    """Return a function that is pickled by value with everything it uses, as in a notebook."""
    function.__module__ = "__main__"
    return function


def round_trip(value):
    return pickle.loads(pickling.dump(value, name="value"))


def test_values_round_trip():
    offset = 5
    assert round_trip(lambda x: x + offset)(1) == 6
    assert round_trip(functools.partial(max, 3))(2) == 3
    assert round_trip({"a": [1, (2, {3})]}) == {"a": [1, (2, {3})]}
    assert round_trip(None) is None

    class Local:
        pass

    assert round_trip(Local()).__class__.__name__ == "Local"


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        (threading.Lock(), "result", "a lock cannot be pickled; make it where it is used"),
        (
            {"k": [1, {"lock": threading.Lock()}]},
            "result['k'][1]['lock']",
            "a lock cannot be pickled",
        ),
        ([0, (1, threading.RLock())], "result[1][1]", "a lock cannot be pickled"),
        (nest(threading.Lock(), 30), "result" + "[0]" * 30, "a lock cannot be pickled"),
        ([Slotted(threading.Lock())], "result[0].thing", "a lock cannot be pickled"),
        ([Frozen(threading.Lock())], "result[0][0]", "a lock cannot be pickled"),
        (collections.deque([1, [threading.Lock()]]), "result[1][0]", "a lock cannot be pickled"),
        (Discreet(a=1, b=[threading.Lock()]), "result['b'][0]", "a lock cannot be pickled"),
        ({threading.Lock(): 1}, "a key of result", "a lock cannot be pickled"),
        ((i for i in ()), "result", "a generator cannot be pickled; return list(...) of it"),
        ({"g": (i for i in ())}, "result['g']", "a generator cannot be pickled"),
        (Box(inner=Box(lock=threading.Lock())), "result.inner.lock", "a lock cannot be pickled"),
        (Box(lock=threading.Lock()).method, "result.__self__.lock", "a lock cannot be pickled"),
        (functools.partial(print, threading.Lock()), "result.args[0]", "a lock cannot be pickled"),
        (
            functools.partial(print, x=threading.Lock()),
            "result.keywords['x']",
            "a lock cannot be pickled",
        ),
        (
            functools.partial(Box(lock=threading.Lock()).method),
            "result.func.__self__.lock",
            "a lock",
        ),
        (sys._getframe(), "result", "a stack frame cannot be pickled"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_culprit_is_named_by_its_path(value, path, why):
    with pytest.raises(BundleError) as caught:
        pickling.dump(value, name="result")
    found, _, reason = caught.value.message.partition(": ")
    assert found == path
    assert reason.startswith(why)


def test_files_and_sockets(tmp_path):
    with (tmp_path / "f").open("w") as file, pytest.raises(BundleError, match="pass its path"):
        pickling.dump({"log": file}, name="arguments")
    with socket.socket() as sock, pytest.raises(BundleError, match=r"arguments\[0\]: a socket"):
        pickling.dump([sock], name="arguments")


def test_globals_that_a_function_uses():
    lock = threading.Lock()

    @by_value
    def closes_over():
        return lock

    @by_value
    def uses_a_global():
        return LOCK, FINE

    @by_value
    def uses_it_deeper():
        return [LOCK for _ in range(3)]

    for function, name in (
        (closes_over, "lock"),
        (uses_a_global, "LOCK"),
        (uses_it_deeper, "LOCK"),
    ):
        with pytest.raises(BundleError) as caught:
            pickling.dump(function, name="train")
        assert caught.value.message.startswith(f"train uses {name!r}: a lock cannot be pickled")


def test_a_function_that_closes_over_nothing_yet():
    lock = threading.Lock()

    @by_value
    def function():
        return later, lock

    with pytest.raises(BundleError, match="train uses 'lock': a lock cannot be pickled"):
        pickling.dump(function, name="train")
    later = 1
    assert function() == (later, lock)


def test_deep_nesting_is_reported():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BundleError, match=r"^result is nested too deeply to be pickled"):
        pickling.dump(deep, name="result")


def test_cycle_of_unpicklable_values_ends():
    ring = Box(lock=None)
    ring.self = ring
    ring.other = Box(ring=ring, lock=threading.Lock())
    with pytest.raises(BundleError, match=r"result\.other\.lock: a lock"):
        pickling.dump(ring, name="result")


class Demanding(ValueError):
    def __init__(self, what, *, code):
        super().__init__(f"{what}!")
        self.code = code


class Translated(UnicodeDecodeError):
    def __init__(self, why):
        super().__init__("ascii", b"x", 0, 1, why)


class Counted(Exception):
    def __init__(self, what, count):
        super().__init__(what)
        self.count = count

    def __reduce__(self):
        return type(self), (self.args[0], self.count + 1)


@pytest.mark.parametrize("dump", [pickling.dump, payloads.pack], ids=["result", "payload"])
def test_exceptions_round_trip_with_any_constructor(dump):
    def again(error):
        found = dump({"error": error}, name="exception")
        return pickle.loads(found if isinstance(found, bytes) else found[0])["error"]

    error = again(Demanding("bad", code=3))
    assert (type(error), error.args, error.code) == (Demanding, ("bad!",), 3)
    error = again(Translated("as asked"))
    assert (type(error), error.reason, str(error)) == (
        *(Translated, "as asked"),
        "'ascii' codec can't decode byte 0x78 in position 0: as asked",
    )
    assert again(SystemExit(7)).code == 7
    assert again(FileNotFoundError(2, "gone", "f")).filename == "f"
    assert again(KeyError("k")).args == ("k",)
    assert again(Counted("own", 1)).count == 2  # it defines its own pickling
    if sys.version_info >= (3, 11):
        group = again(builtins.ExceptionGroup("two", [Demanding("a", code=1), OSError(2, "b")]))
        assert [type(each) for each in group.exceptions] == [Demanding, FileNotFoundError]


class Rude:
    def __reduce__(self):
        raise KeyboardInterrupt if self is None else ZeroDivisionError("rude")


def test_a_class_that_refuses():
    with pytest.raises(BundleError, match=r"result\['r'\]: a Rude cannot be pickled") as caught:
        pickling.dump({"r": Rude()}, name="result")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_cpu_tensors_round_trip_unchanged():
    tensor = torch.arange(4.0, requires_grad=True)
    [back] = round_trip([tensor])
    assert torch.equal(back, tensor)
    assert back.requires_grad
    parameter = torch.nn.Parameter(torch.ones(2))
    assert isinstance(round_trip(parameter), torch.nn.Parameter)
    model = torch.nn.Linear(2, 3)
    again = round_trip(model)
    assert [type(p) for p in again.parameters()] == [torch.nn.Parameter] * 2
    assert torch.equal(again.weight, model.weight)


def test_tensors_without_storage_round_trip():
    assert round_trip(torch.empty(3, device="meta")).device.type == "meta"


def test_pickling_does_not_import_torch():
    code = (
        "import sys; from windlass.wire import pickling; pickling.dump([1], name='x'); "
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"


def test_bytes_equal_those_of_cloudpickle():
    import cloudpickle

    buffer = io.BytesIO(pickling.dump({"a": 1}, name="x"))
    assert cloudpickle.load(buffer) == {"a": 1}
