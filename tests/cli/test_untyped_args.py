"""Arguments of a function that the client cannot inspect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.cli.argument_values import read_blind
from windlass.errors import SpecError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ([], {})),
        (["--lr", "1e-3"], ([], {"lr": 0.001})),
        (["--lr=1"], ([], {"lr": 1})),
        (["--max-steps", "-1"], ([], {"max_steps": -1})),
        (["--fast", "--name", "run one"], ([], {"fast": True, "name": "run one"})),
        (["--layers", "[1, 2]", "data"], (["data"], {"layers": [1, 2]})),
        (["a", "2", "true", "None"], (["a", 2, True, None], {})),
        (["--x="], ([], {"x": ""})),
        (["__import__('os')"], (["__import__('os')"], {})),
    ],
    ids=str,
)
def test_argument_values(words, expected):
    assert read_blind(words) == expected


@pytest.mark.parametrize("word", ["--", "--1x", "--a.b", "--=1"])
def test_refused(word):
    with pytest.raises(SpecError, match="is not a keyword argument"):
        read_blind([word])


@given(st.lists(st.text(max_size=9).filter(lambda text: not text.startswith("--")), max_size=5))
def test_other_arguments_are_positional(words):
    args, kwargs = read_blind(words)
    assert (len(args), kwargs) == (len(words), {})
