"""Flags from a signature: reading the source, converting arguments, and refusals."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.cli.function_flags import Signature, read_flags, read_signature, render_help
from windlass.errors import SpecError

TRAIN = '''
from __future__ import annotations

import a_module_that_does_not_exist

raise SystemExit("imported")


def train(
    data: Path,
    lr: float = 1e-3,
    batch_size: int = 8 * 4,
    *,
    layers: list[int] = (64, 64),
    mode: Literal["fast", "safe"] = "fast",
    shuffle: bool = True,
    resume: Path | None = None,
    betas: tuple[float, float] = (0.9, 0.95),
    config: dict = {},
    dtype: torch.dtype = "bf16",
    seed=None,
):
    """Train a small model.

    More about it.

    Args:
        data: where the samples are
        lr (float): the learning rate
    """
'''


@pytest.fixture
def write(tmp_path: Path):
    def write(source: str, name: str = "train.py") -> Path:
        (tmp_path / name).write_text(dedent(source))
        return tmp_path / name

    return write


@pytest.fixture
def train(write) -> Signature:
    return read_signature(write(TRAIN), "train")


def make(source: str, tmp_path: Path) -> Signature:
    (tmp_path / "f.py").write_text(f"def f({source}): pass\n")
    return read_signature(tmp_path / "f.py", "f")


def refused(signature: Signature, *argv: str) -> str:
    with pytest.raises(SpecError) as caught:
        read_flags(signature, argv)
    assert caught.value.hint
    return str(caught.value)


def test_signature_is_read_and_not_imported(train):
    assert train.doc == "Train a small model."
    assert [p.name for p in train.parameters if p.required] == ["data"]
    by_name = {p.name: p for p in train.parameters}
    assert by_name["data"].help == "where the samples are"
    lr, size = by_name["lr"], by_name["batch_size"]
    assert (lr.annotation, lr.default, lr.is_literal) == ("float", 0.001, True)
    assert (size.default, size.is_literal, size.kind) == ("8 * 4", False, "either")
    assert (by_name["seed"].default, by_name["seed"].required) == (None, False)
    assert by_name["mode"].kind == "keyword"


def test_kinds(tmp_path):
    signature = make("a, /, b: 'int | None', *c: int, d, **e: float", tmp_path)
    assert [p.kind for p in signature.parameters] == [
        *("positional", "either", "args", "keyword", "kwargs")
    ]
    assert [p.annotation for p in signature.parameters] == ["", "int | None", "int", "", "float"]
    assert [p.required for p in signature.parameters] == [True, True, False, True, False]


def test_a_function_under_a_condition_and_the_last_of_two(write):
    path = write("""
        try:
            import torch
        except ImportError:
            def run(a): ...
        else:
            if True:
                def run(b): ...
    """)
    assert [p.name for p in read_signature(path, "run").parameters] == ["b"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("trian", "function 'trian' not found in {path}\n  hint: did you mean 'train'?"),
        ("xyz", "hint: functions there: coro, train"),
        ("Model", "Model in {path} is not written with `def`"),
        ("made", "made in {path} is not written with `def`"),
        ("join", "join in {path} is not written with `def`"),
        ("Model.fit", "Model.fit is not a top-level function"),
        ("fit", "fit (line 5 of {path}) is inside a function or a class"),
        ("inner", "inner (line 7 of {path}) is inside"),
        ("coro", "coro in {path} is async"),
    ],
)
def test_functions_that_cannot_run(write, function, message):
    path = write(
        """\
        from os.path import join
        made: object = join
        made = join
        class Model:
            def fit(self): ...
        def train():
            def inner(): ...
        async def coro(): ...
        """
    )
    with pytest.raises(SpecError) as caught:
        read_signature(path, function)
    assert message.format(path=path) in str(caught.value)
    assert caught.value.hint


def test_a_file_with_a_mistake_names_the_line(write):
    path = write("def a():\n    pass\ndef b(:\n")
    with pytest.raises(SpecError, match=r"train\.py, line 3: "):
        read_signature(path, "a")


def test_a_file_that_is_not_python(tmp_path):
    (tmp_path / "train.py").write_bytes(b"a = 1\0")
    with pytest.raises(SpecError, match=r"train\.py"):
        read_signature(tmp_path / "train.py", "a")


def test_invalid_escape_does_not_warn(write):
    assert read_signature(write("def a(b='\\d'): ...\n"), "a").parameters[0].default == "\\d"


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("trian.py", "did you mean {folder}/train.py?"),
        ("train", "did you mean {folder}/train.py?"),
        ("zzzzzz.xy", "Python files there: train.py"),
        ("no/train.py", "the folder {folder}/no does not exist either"),
        ("train.py/x.py", "the folder {folder}/train.py does not exist either"),
    ],
)
def test_a_missing_file(write, tmp_path, asked, hint):
    write(TRAIN)
    with pytest.raises(SpecError, match="file not found") as caught:
        read_signature(tmp_path / asked, "train")
    assert caught.value.hint == hint.format(folder=tmp_path)


def test_folder_is_refused(tmp_path):
    with pytest.raises(SpecError, match="cannot read"):
        read_signature(tmp_path, "train")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--lr", "1e-2"], {"lr": 0.01}),
        (["--lr=1e-2"], {"lr": 0.01}),
        (["--lr", "-1"], {"lr": -1.0}),
        (["--lr=-1e-3"], {"lr": -0.001}),
        (["--lr", "1", "--lr", "2"], {"lr": 2.0}),
        (["--batch-size", "8"], {"batch_size": 8}),
        (["--batch_size=8"], {"batch_size": 8}),
        (["--layers", "1,2,3"], {"layers": [1, 2, 3]}),
        (["--layers", "1", "--layers", "2"], {"layers": [1, 2]}),
        (["--layers="], {"layers": []}),
        (["--mode", "safe"], {"mode": "safe"}),
        (["--shuffle"], {"shuffle": True}),
        (["--no-shuffle"], {"shuffle": False}),
        (["--shuffle", "false"], {"shuffle": False}),
        (["--shuffle=no"], {"shuffle": False}),
        (["--resume", "a/b"], {"resume": Path("a/b")}),
        (["--resume", "none"], {"resume": None}),
        (["--betas", "0.8,0.9"], {"betas": (0.8, 0.9)}),
        (["--config", '{"a": {"b=c": 1}}'], {"config": {"a": {"b=c": 1}}}),
        (["--config={}"], {"config": {}}),
        (["--dtype", "16"], {"dtype": "16"}),
        (["--seed", "3"], {"seed": 3}),
        (["--seed", "x"], {"seed": "x"}),
        (["--seed", "none"], {"seed": None}),
        ([], {}),
    ],
)
def test_flags(train, argv, expected):
    assert read_flags(train, ["--data", "d", *argv]) == ([], {"data": Path("d"), **expected})


def test_positional_arguments_fill_in_order_between_flags(train):
    assert read_flags(train, ["d", "--shuffle", "-0.5", "--mode", "safe", "4"]) == (
        [Path("d"), -0.5, 4],
        {"shuffle": True, "mode": "safe"},
    )


def test_switch_does_not_consume_the_next_argument(train):
    assert read_flags(train, ["--shuffle", "d"]) == ([Path("d")], {"shuffle": True})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "train requires --data (path)\n  hint: usage: windlass run "),
        (["d", "--lrr", "1"], "train has no flag --lrr\n  hint: did you mean --lr?"),
        (["d", "--batchsize=1"], "did you mean --batch-size?"),
        (["d", "--no-shufle"], "did you mean --no-shuffle?"),
        (["d", "--no-lr"], "train has no flag --no-lr"),
        (["d", "-l"], "train has no flag -l"),
        (["d", "--"], "train has no flag --"),
        (["d", "--lr", "fast"], "--lr must be float, not 'fast'"),
        (["d", "--batch-size", "1.5"], "--batch-size must be int, not '1.5'"),
        (["d", "--mode", "slow"], "--mode must be fast|safe, not 'slow'"),
        (["d", "--layers", "1", "--layers", "x"], "--layers must be list[int], not '1' 'x'"),
        (["d", "--betas", "1"], "--betas must be tuple[float, float], not '1'"),
        (["d", "--config", "a=1"], "--config must be json, not 'a=1'"),
        (["d", "--shuffle=maybe"], "--shuffle must be bool, not 'maybe'"),
        (["d", "--no-shuffle=true"], "--no-shuffle takes no value"),
        (["d", "--lr"], "--lr requires a value: float"),
        (["d", "--lr", "--shuffle"], "--lr requires a value: float"),
        (["d", "x"], "lr must be float, not 'x'"),
        (
            ["d", "1", "2", "3"],
            "unexpected argument '3': train takes at most 3 positional arguments",
        ),
        (["d", "--data", "e"], "data is given twice: as --data and as the positional argument 'd'"),
    ],
)
def test_refused_flags(train, argv, message):
    assert message in refused(train, *argv)


@pytest.mark.parametrize(
    ("source", "argv", "expected"),
    [
        ("*names: int", ["1", "-2"], ([1, -2], {})),
        ("a, *rest", ["x", "1", "y"], (["x", 1, "y"], {})),
        ("**more", ["--a-b", "1", "--c", "--d=x=y"], ([], {"a_b": 1, "c": True, "d": "x=y"})),
        ("**more", ["--no-e"], ([], {"no_e": True})),
        ("**more: float", ["--a", "-1"], ([], {"a": -1.0})),
        ("a, /, **more", ["1", "--a", "2"], ([1], {"a": 2})),
        ("a=1, /", [], ([], {})),
        ("no_cache: bool", ["--no-cache"], ([], {"no_cache": True})),
        ("no_cache: bool", ["--no-no-cache"], ([], {"no_cache": False})),
        ("a: bool | None = None", ["--a", "none"], ([], {"a": None})),
        ("a: bool | str = False", ["--a"], ([], {"a": True})),
        ("a: bool | str = False", ["--a", "auto"], ([], {"a": "auto"})),
        ("a", ["-"], (["-"], {})),
        ("a: str", ["--a="], ([], {"a": ""})),
        ("", [], ([], {})),
    ],
)
def test_shapes_of_signatures(tmp_path, source, argv, expected):
    assert read_flags(make(source, tmp_path), argv) == expected


@pytest.mark.parametrize(
    ("source", "argv", "message"),
    [
        ("a, /", ["--a", "1"], "f takes a as a positional argument, not as a flag"),
        ("a, /, **more", ["--a", "1"], "f requires a (value)"),
        ("", ["x"], "f takes no positional arguments"),
        ("a, *, b: Color", [], "f requires --a (value), --b (Color)"),
        ("**more: str", ["--a"], "--a requires a value: str"),
        ("**more: int", ["--a-b", "x"], "--a-b must be int, not 'x'"),
    ],
)
def test_refused_shapes(tmp_path, source, argv, message):
    assert message in refused(make(source, tmp_path), *argv)


def test_help(train):
    assert render_help(train, "windlass run train.py::train") == dedent(
        """\
        usage: windlass run train.py::train --data path [--lr float] [--batch-size int]
               [--layers list[int]] [--mode fast|safe] [--shuffle | --no-shuffle]
               [--resume path|none] [--betas tuple[float, float]] [--config json] [--dtype str]
               [--seed value|none]

        Train a small model.

        parameters:
          --data path                 where the samples are (required)
          --lr float                  the learning rate (default: 0.001)
          --batch-size int            (default: 8 * 4)
          --layers list[int]          (default: (64, 64))
          --mode fast|safe            (default: 'fast')
          --shuffle | --no-shuffle    (default: True)
          --resume path|none          (default: None)
          --betas tuple[float, float]
                                      (default: (0.9, 0.95))
          --config json               (default: {})
          --dtype str                 (default: 'bf16')
          --seed value|none           (default: None)

        A list is given as 1,2,3 or by naming its flag again.
        """
    )


def test_help_of_positional_arguments_and_of_no_arguments(tmp_path):
    text = render_help(make("a: int, /, *rest: str, **more", tmp_path), "run f")
    assert text.startswith("usage: run f A [REST ...] [--KEY value ...]\n\nparameters:\n")
    assert "int (required)" in text
    assert render_help(make("", tmp_path), "run f") == "usage: run f\n"


def test_file_is_read_but_not_imported(train):
    assert "a_module_that_does_not_exist" not in sys.modules


def signature_of(annotation: str, tmp_path_factory: pytest.TempPathFactory) -> Signature:
    return make(f"value: {annotation}", tmp_path_factory.mktemp("f"))


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> dict[str, Signature]:
    return {t: signature_of(t, tmp_path_factory) for t in ("int", "float", "str", "dict", "Any")}


@given(value=st.integers() | st.floats(allow_nan=False) | st.text(), is_joined=st.booleans())
def test_values_written_as_flags_read_back(typed, value, is_joined):
    text = str(value)
    argv = [f"--value={text}"] if is_joined or text.startswith("--") else ["--value", text]
    args, kwargs = read_flags(typed[type(value).__name__], argv)
    assert (args, kwargs) == ([], {"value": value})
    assert type(kwargs["value"]) is type(value)


@given(value=st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
def test_literals_written_as_flags_read_back_without_a_type(typed, value):
    assert read_flags(typed["Any"], [f"--value={value!r}"]) == ([], {"value": value})


@given(value=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_tables_written_as_json_read_back(typed, value):
    assert read_flags(typed["dict"], ["--value", json.dumps(value)]) == ([], {"value": value})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Signature:
    path = tmp_path_factory.mktemp("whole") / "train.py"
    path.write_text(TRAIN)
    return read_signature(path, "train")


WORDS = st.text() | st.sampled_from(["--data", "--lr", "--layers=1", "--no-shuffle", "1"])


@given(argv=st.lists(WORDS))
def test_any_arguments_are_a_call_or_a_clear_error(whole, argv):
    with contextlib.suppress(SpecError):
        args, kwargs = read_flags(whole, argv)
        assert len(args) + len(kwargs) >= 1
