"""Annotations, which convert arguments to values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.cli.argument_values import make_type, read_literal, read_value, read_values


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        ("int", "-3", -3),
        ("int", "0x10", 16),
        ("float", "1e-3", 0.001),
        ("float", "3", 3.0),
        ("str", "3", "3"),
        ("str", "None", "None"),
        ("bool", "true", True),
        ("bool", "False", False),
        ("Path", "a/b", Path("a/b")),
        ("pathlib.Path", "a", Path("a")),
        ("'int'", "3", 3),
        ("Optional[int]", "none", None),
        ("typing.Optional['int']", "3", 3),
        ("int | None", "None", None),
        ("None | str", "x", "x"),
        ("Union[int, str]", "3", 3),
        ("str | int", "3", 3),
        ("str | int", "x", "x"),
        ("int | float | None", "3.5", 3.5),
        ("float | list[float]", "1,2", [1.0, 2.0]),
        ("Annotated[int, 'rate']", "3", 3),
        ("Literal['a', 'b']", "b", "b"),
        ("Literal[1, 2]", "2", 2),
        ("Literal[True, 'auto']", "true", True),
        ("Literal['a', None]", "none", None),
        ("list[int]", "1, 2,3", [1, 2, 3]),
        ("list[int]", "", []),
        ("list[str]", "['a,b', 'c']", ["a,b", "c"]),
        ("list[list[int]]", "[[1, 2], [3]]", [[1, 2], [3]]),
        ("Sequence[float]", "1,2", [1.0, 2.0]),
        ("list", "1,a", [1, "a"]),
        ("tuple[int, ...]", "1,2", (1, 2)),
        ("tuple[int, str]", "1,2", (1, "2")),
        ("set[int]", "1,1,2", {1, 2}),
        ("dict", '{"a": [1]}', {"a": [1]}),
        ("dict[str, int]", '{"a": 1}', {"a": 1}),
        ("Any", "1.5", 1.5),
        ("torch.dtype", "bfloat16", "bfloat16"),
        ("not python(", "3", 3),
        ("tuple[()]", "x", "x"),
        ("", "True", True),
    ],
)
def test_read_value(annotation, text, expected):
    value = read_value(make_type(annotation), text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("int", "1.5"),
        ("int", "none"),
        ("int", ""),
        ("float", "x"),
        ("bool", "maybe"),
        ("int | float", "x"),
        ("Literal['a', 'b']", "c"),
        ("list[int]", "1,x"),
        ("tuple[int, int]", "1,2,3"),
        ("dict", "[1]"),
        ("dict", "{a: 1}"),
    ],
)
def test_refused_words(annotation, text):
    with pytest.raises(ValueError):
        read_value(make_type(annotation), text)


@pytest.mark.parametrize(
    ("annotation", "default", "spelled"),
    [
        ("", 1, "int"),
        ("", 0.5, "float"),
        ("", "x", "str"),
        ("", True, "bool"),
        ("", None, "value|none"),
        ("int", None, "int|none"),
        ("Color", "red", "str"),
        ("", [1, 2], "list[int]"),
        ("", (0.9, 0.95), "tuple[float]"),
        ("", [1, "a"], "list[value]"),
        ("", [], "list[value]"),
        ("", {}, "json"),
        ("float", 1, "float"),
        ("Optional[Literal['a', 'b']]", ..., "a|b|none"),
        ("int | list[int]", ..., "int|list[int]"),
    ],
)
def test_default_value_gives_the_type_without_an_annotation(annotation, default, spelled):
    assert str(make_type(annotation, default)) == spelled


@pytest.mark.parametrize(
    ("annotation", "texts", "expected"),
    [
        ("list[int]", ["1", "2,3"], [1, 2, 3]),
        ("tuple[int, int]", ["1", "2"], (1, 2)),
        ("int", ["1", "2"], 2),
        ("int | list[int]", ["1"], 1),
        ("int | list[int]", ["1", "2"], [1, 2]),
        ("int | str", ["1", "x"], "x"),
        ("list[int] | None", ["none"], None),
    ],
)
def test_repeated_arguments(annotation, texts, expected):
    assert read_values(make_type(annotation), texts) == expected


@given(st.text())
def test_any_word_is_a_literal_or_itself(text):
    read_literal(text)


@given(st.lists(st.text()))
def test_lists_of_any_text_read_back(items):
    assert read_value(make_type("list[str]"), repr(items)) == items


@given(
    st.text(), st.sampled_from(["int", "Optional[", "list[", "]", "Literal", "x|", "Tuple[int]"])
)
def test_any_annotation_is_handled(text, part):
    str(make_type(part + text))
