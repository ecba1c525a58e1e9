"""Exceptions as users see them: the user's line is found, and Windlass's frames are removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windlass.agent.rank import rank_outcome
from windlass.agent.rank.rank_outcome import format_error, make_error


def run_user_code(tmp_path, text):
    """Run a script as a rank does, and return the exception that it raised."""
    path = tmp_path / "train.py"
    path.write_text(text)
    try:
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return error
    pytest.fail("it raised nothing")


def test_the_user_s_line_is_found(tmp_path):
    error = run_user_code(tmp_path, "def f():\n    raise KeyError('x')  # here\n\nf()\n")
    info = make_error(error, root=str(tmp_path))
    assert (info.file, info.line) == (str(tmp_path / "train.py"), 2)
    assert info.source == "raise KeyError('x')  # here"
    assert (info.type, info.message) == ("builtins.KeyError", "'x'")
    assert info.text == "KeyError: 'x'"


def test_a_failure_inside_a_library_is_blamed_on_the_line_that_called_it(tmp_path):
    error = run_user_code(tmp_path, "import json\n\njson.loads('{')\n")
    info = make_error(error, root=str(tmp_path))
    assert (info.file, info.line) == (str(tmp_path / "train.py"), 3)
    assert os.path.dirname(json.__file__) in info.traceback


def test_line_of_the_project_is_preferred(tmp_path):
    beside = tmp_path / "elsewhere" / "lib.py"
    beside.parent.mkdir()
    beside.write_text("def g():\n    1 / 0\n")
    project = tmp_path / "project"
    project.mkdir()
    text = f"import sys; sys.path.insert(0, {str(beside.parent)!r})\nimport lib\nlib.g()\n"
    try:
        error = run_user_code(project, text)
    finally:
        import sys

        sys.path.remove(str(beside.parent))
        sys.modules.pop("lib", None)
    assert make_error(error, root=str(project)).file == str(project / "train.py")
    assert make_error(error, root="").file == str(beside)
    assert make_error(error, root="/nowhere").line == 2


def test_a_syntax_error_points_at_itself(tmp_path):
    path = tmp_path / "bad.py"
    try:
        compile("x = 1\ny = = 2\n", str(path), "exec")
    except SyntaxError as error:
        info = make_error(error, root=str(tmp_path))
    assert (info.file, info.line) == (str(path), 2)


def test_an_exception_that_was_never_raised():
    info = make_error(ValueError("x"), root="/p")
    assert (info.file, info.line, info.source) == ("", 0, "")
    assert info.traceback == "ValueError: x\n"


def test_our_own_frames_are_cut_off(tmp_path):
    def ours():
        run()

    run = compile("def run():\n    ours()\n", str(Path(rank_outcome._OURS[0], "rank.py")), "exec")
    text = "def user():\n    raise ValueError('x')\n"
    space: dict = {}
    exec(compile(text, str(tmp_path / "u.py"), "exec"), space)
    space["ours"] = space["user"]
    exec(run, space)
    try:
        space["run"]()
    except ValueError as error:
        first = error.__traceback__.tb_next  # the test's own frame is not part of the package
        text = format_error(error.with_traceback(first))
    assert "rank.py" not in text
    assert "u.py" in text


def test_error_in_our_own_code_has_no_line():
    """An argument that cannot be unpickled fails like this, before any line of the user has run."""
    space: dict = {}
    code = "def load():\n    import no_such_module\n"
    exec(compile(code, str(Path(rank_outcome._OURS[0], "rank.py")), "exec"), space)
    try:
        space["load"]()
    except ImportError as error:
        info = make_error(error.with_traceback(error.__traceback__.tb_next), root="/p")
    assert (info.file, info.line) == ("", 0)
    assert "no_such_module" in info.message


def test_causes_are_shown(tmp_path):
    code = "try:\n    {}['inner']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e\n"
    info = make_error(run_user_code(tmp_path, code), root=str(tmp_path))
    assert info.line == 4
    assert "KeyError: 'inner'" in info.traceback
    assert "direct cause" in info.traceback


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no")


def test_exit_with_a_cause_has_its_message():
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(2) from ValueError("there is no file x")
    assert make_error(ended.value, root="").message == "there is no file x"
    assert make_error(SystemExit("bad config"), root="").message == "bad config"
    assert make_error(SystemExit(2), root="").message == "2"


def test_an_exception_that_cannot_be_printed():
    info = make_error(Mute(), root="")
    assert info.message == "<its __str__ raised RuntimeError>"
    assert "Mute" in info.traceback


def test_all_fields_are_bounded(tmp_path):
    error = run_user_code(tmp_path, "raise ValueError('x' * 1_000_000)" + " " * 1000 + "\n")
    info = make_error(error, root=str(tmp_path))
    assert len(info.message) <= 4_000
    assert len(info.traceback) <= 20_000
    assert len(info.source) <= 200


def test_type_of_a_nested_class():
    class Local(Exception):
        pass

    assert make_error(Local(), root="").type.endswith("test_type_of_a_nested_class.<locals>.Local")
