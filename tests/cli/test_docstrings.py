"""Docstrings in three styles, which give the same help."""

from __future__ import annotations

import pytest

from windlass.cli.function_flags import read_parameter_help, read_summary

GOOGLE = """Train a model.

    Args:
        lr (float): the learning rate,
            at the start.

            A second paragraph.
        steps: how many: all of them
        *rest: more
        **options: even more

    Returns:
        loss: the last one
    """
NUMPY = """Train a model.

    Parameters
    ----------
    lr : float, optional
        the learning rate,
        at the start.

        A second paragraph.
    steps
        how many: all of them
    *rest
        more
    **options : dict
        even more

    Returns
    -------
    loss : float
        the last one
    """
SPHINX = """Train a model.

    :param float lr: the learning rate,
        at the start.
    :type lr: float
    :param steps: how many: all of them
    :param rest: more
    :param options: even more
    :returns: the last one
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_styles(docstring):
    assert read_summary(docstring) == "Train a model."
    assert read_parameter_help(docstring) == {
        "lr": "the learning rate, at the start.",
        "steps": "how many: all of them",
        "rest": "more",
        "options": "even more",
    }


def test_numpy_names_that_share_a_line():
    text = "S.\n\nParameters\n----------\na, b : int\n    both\n"
    assert read_parameter_help(text) == {"a": "both", "b": "both"}


@pytest.mark.parametrize(
    ("docstring", "summary"),
    [
        ("", ""),
        ("One.", "One."),
        ("One\n    goes on.\n\n    Two.", "One goes on."),
        ("\n    One.\n    ", "One."),
        ("Args:", "Args:"),
    ],
)
def test_summary(docstring, summary):
    assert read_summary(docstring) == summary
    assert read_parameter_help(docstring) == {}
