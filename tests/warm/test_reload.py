"""Hot reload: the next call runs edited modules as they are on disk."""

from __future__ import annotations

import linecache
import sys
import types

import pytest

import windlass as kt

TASK = """
import os

def value():
    return {value}, os.getpid()
"""


@pytest.fixture(params=["", "process"], ids=["fresh", "kept"])
def keep(request):
    return request.param


@pytest.fixture
def send(warm, keep):
    """Return a function that makes a remote on two nodes."""

    def send(function):
        return kt.fn(function, keep=keep).to(warm).distribute("spmd", workers=2)

    return send


def edit(project, value):
    project.write("{stem}.py", TASK.replace("{value}", str(value)))


def values(found):
    return [value for value, _ in found]


def test_edited_module_is_reloaded(project, send):
    edit(project, 1)
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    edit(project, 22)
    assert values(remote()) == [22, 22]
    assert values(remote()) == [22, 22]


def test_edits_of_the_same_size_within_a_second(project, send):
    edit(project, 0)
    remote = send(project.load("{stem}").value)
    for value in range(1, 9):
        edit(project, value)
        assert values(remote()) == [value, value]


def test_kept_processes_reload_in_place(project, warm):
    edit(project, 1)
    remote = kt.fn(project.load("{stem}").value, keep="process").to(warm)
    _, before = remote()
    edit(project, 2)
    assert remote() == (2, before)


def test_imports_of_a_changed_module_are_reloaded(project, send):
    project.write("{stem}_low.py", "VALUE = 1")
    project.write("{stem}.py", "from {stem}_low import VALUE\ndef value():\n    return VALUE, 0\n")
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    project.write("{stem}_low.py", "VALUE = 2")
    assert values(remote()) == [2, 2]


def test_modules_of_a_package(project, send):
    project.write("{stem}/__init__.py", "")
    project.write("{stem}/deep/__init__.py", "BASE = 1")
    project.write("{stem}/deep/low.py", "VALUE = 1")
    project.write(
        "{stem}/top.py",
        """
        from {stem}.deep import BASE
        from {stem}.deep.low import VALUE

        def value():
            return BASE + VALUE, 0
        """,
    )
    remote = send(project.load("{stem}.top").value)
    assert values(remote()) == [2, 2]
    project.write("{stem}/deep/low.py", "VALUE = 5")
    assert values(remote()) == [6, 6]
    project.write("{stem}/deep/__init__.py", "BASE = 2")
    assert values(remote()) == [7, 7]


LAZY = """
def value():
    from {name}.low import VALUE
    return VALUE, 0
"""


@pytest.mark.parametrize("name", ["build", "dist", "venv"])
def test_packages_that_only_ranks_import_may_have_any_name(project, send, name):
    def edit_low(value):
        project.write(f"lib/{name}/low.py", f"VALUE = {value}")

    edit_low(1)
    project.write(f"lib/{name}/__init__.py", "")
    lazy = LAZY.replace("{name}", name)
    head = "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\n"
    project.write("{stem}.py", head + lazy)
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    assert values(remote()) == [1, 1]  # the first scan of the files is over
    edit_low(2)
    assert values(remote()) == [2, 2]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_linked_packages(on, project, send, tmp_path, inside):
    if on.space and not inside:
        pytest.skip("a link out of the project is refused where files travel")
    real = project.folder / "real" if inside else tmp_path / "elsewhere"
    real.mkdir()
    (real / "low.py").write_text("VALUE = 1")
    name = f"{project.stem}_pkg"
    (project.folder / name).symlink_to(real)
    project.write("{stem}.py", LAZY.replace("{name}", name))
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    assert values(remote()) == [1, 1]  # the first scan of the files is over
    (real / "low.py").write_text("VALUE = 2")
    assert values(remote()) == [2, 2]
    assert values(remote()) == [2, 2]


@pytest.mark.local_only
def test_modules_that_are_links(project, send, tmp_path):
    def edit_low(value):
        (tmp_path / "elsewhere.py").write_text(f"VALUE = {value}\n")

    edit_low(1)
    low = f"{project.stem}_low"
    (project.folder / f"{low}.py").symlink_to(tmp_path / "elsewhere.py")
    project.write("{stem}.py", f"def value():\n    import {low}\n    return {low}.VALUE, 0\n")
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    assert values(remote()) == [1, 1]  # the first scan of the files is over
    edit_low(2)
    assert values(remote()) == [2, 2]


def test_project_reached_through_a_link(project, send, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(project.folder)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(project.folder)])
    monkeypatch.syspath_prepend(str(tmp_path / "link"))
    edit(project, 1)
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    assert values(remote()) == [1, 1]  # the first scan of the files is over
    edit(project, 2)
    assert values(remote()) == [2, 2]
    project.write(
        "{stem}.py", TASK.replace("value()", "value(number)").replace("{value}", "number")
    )
    assert values(remote(3)) == [3, 3]


def test_added_and_removed_modules(project, send):
    lazy = """
    def value():
        try:
            import {stem}_more
        except ImportError:
            return None, 0
        return {stem}_more.VALUE, 0
    """
    project.write("{stem}.py", lazy)
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [None, None]
    more = project.write("{stem}_more.py", "VALUE = 1")
    assert values(remote()) == [1, 1]
    more.unlink()
    assert values(remote()) == [None, None]
    project.write("{stem}_more/__init__.py", "VALUE = 3")
    assert values(remote()) == [3, 3]


def test_function_with_a_new_parameter(project, send):
    project.write("{stem}.py", "def value(a):\n    return a, 0\n")
    remote = send(project.load("{stem}").value)
    assert values(remote(1)) == [1, 1]
    project.write("{stem}.py", "def value(a, b):\n    return a + b, 0\n")
    assert values(remote(1, 2)) == [3, 3]


def test_syntax_error_is_raised_by_the_client_with_its_line(project, send, keep):
    edit(project, 1)
    remote = send(project.load("{stem}").value)
    before = remote()
    path = project.write("{stem}.py", "import os\n\ndef value():\n    return 2,, os.getpid()\n")
    for _ in range(2):
        with pytest.raises(SyntaxError) as caught:
            remote()
        assert (caught.value.filename, caught.value.lineno) == (str(path), 4)
    edit(project, 1)
    after = remote()
    assert values(after) == [1, 1]
    if keep:
        assert after == before


def test_a_syntax_error_in_a_module_that_only_ranks_import(project, send):
    project.write(
        "{stem}.py", "def value():\n    import {stem}_low\n    return {stem}_low.VALUE, 0\n"
    )
    project.write("{stem}_low.py", "VALUE = 1")
    remote = send(project.load("{stem}").value)
    assert values(remote()) == [1, 1]
    path = project.write("{stem}_low.py", "VALUE = 1\nVALUE = = 2\n")
    with pytest.raises(SyntaxError) as caught:
        remote()
    assert caught.value.lineno == 2
    assert (caught.value.filename or "").endswith(path.name)
    project.write("{stem}_low.py", "VALUE = 3")
    assert values(remote()) == [3, 3]


def test_edit_during_a_call_applies_to_the_next(project, send, shared):
    source = """
    import os
    import time
    from pathlib import Path

    def value(folder):
        Path(folder, "started-" + os.environ["RANK"]).touch()
        for _ in range(6000):
            if Path(folder, "go").exists():
                return {value}, 0
            time.sleep(0.01)
        raise TimeoutError
    """
    project.write("{stem}.py", source.replace("{value}", "1"))
    remote = send(project.load("{stem}").value)
    job = remote.submit(shared.path)
    shared.wait_for("started-0", "started-1")
    project.write("{stem}.py", source.replace("{value}", "2"))
    shared.touch("go")
    assert values(job.results(timeout_s=60)) == [1, 1]
    assert values(remote(shared.path)) == [2, 2]


def test_reload_never_keeps_the_old_code(project, warm):
    edit(project, 1)
    remote = kt.fn(project.load("{stem}").value, keep="process", reload="never").to(warm)
    assert remote()[0] == 1
    edit(project, 2)
    assert remote()[0] == 1


def test_changed_data_files_are_sent(project, send):
    source = "def value():\n    with open('{stem}.txt') as file:\n        return file.read(), 0\n"
    project.write("{stem}.py", source)
    project.write("{stem}.txt", "one")
    remote = send(project.load("{stem}").value)
    assert values(remote()) == ["one", "one"]
    project.write("{stem}.txt", "two")
    assert values(remote()) == ["two", "two"]


def test_object_keeps_its_state_and_gets_new_methods(project, warm):
    source = """
    class Counter:
        def __init__(self):
            self.count = 0

        def add(self):
            self.count += {step}
            return self.count
    """
    project.write("{stem}.py", source.replace("{step}", "1"))
    counter = kt.cls(project.load("{stem}").Counter).to(warm).distribute("spmd", workers=2)
    assert counter.add() == [1, 1]
    project.write("{stem}.py", source.replace("{step}", "100"))
    assert counter.add() == [101, 101]


# -- notebooks -----------------------------------------------------------------------------------


@pytest.fixture
def cell(monkeypatch):
    """Return a function that runs source like a notebook cell, in a __main__ without a file."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(source):
        exec(compile(source, "<cell>", "exec"), main.__dict__)
        return main

    return run


def test_function_of_a_cell_runs_as_last_defined(project, warm, cell, keep):
    main = cell("BASE = 1\ndef helper():\n    return BASE\ndef value():\n    return helper() + 1")
    remote = kt.fn(main.value, keep=keep).to(warm).distribute("spmd", workers=2)
    assert remote() == [2, 2]
    cell("def helper():\n    return BASE + 10")
    assert remote() == [12, 12]
    main = cell("BASE = 5\ndef value():\n    return helper() + 2")
    again = kt.fn(main.value, keep=keep).to(warm).distribute("spmd", workers=2)
    assert again() == [17, 17]


@pytest.mark.parametrize("kind", ["function", "class"])
def test_tracebacks_of_a_cell_show_its_lines(project, warm, cell, monkeypatch, kind):
    def run(name, source):
        """Run source like a notebook that keeps each cell's lines under a separate name."""
        lines = source.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(source), None, lines, name))
        main = cell("")
        exec(compile(source, name, "exec"), main.__dict__)
        return main

    run("<cell-1>", "def helper():\n    raise ValueError('first')  # in a cell")
    main = run("<cell-2>", "def fail(self=None):\n    helper()\nclass Failing:\n    fail = fail")
    if kind == "function":
        call = kt.fn(main.fail).to(warm)
    else:
        call = kt.cls(main.Failing).to(warm).fail
    with pytest.raises(ValueError, match="first") as caught:
        call()
    shown = str(caught.value.__cause__)
    assert "    helper()" in shown
    assert "raise ValueError('first')  # in a cell" in shown
    run("<cell-3>", "def helper():\n    raise ValueError('second')  # in another")
    if kind == "function":
        with pytest.raises(ValueError, match="second") as caught:
            call()
        assert "raise ValueError('second')  # in another" in str(caught.value.__cause__)


@pytest.mark.cluster_only
def test_tracebacks_of_a_script_show_its_lines_on_a_cluster(project, warm, start_client):
    code = """
    def fail():
        raise ValueError("here")  # in a script
    try:
        remote(fail)()
    except ValueError as error:
        print("# in a script" in str(error.__cause__))
    """
    assert start_client(warm, code).finish() == "True\n"


def test_redefining_a_cell_and_calling_again_runs_the_new_code(project, warm, cell):
    main = cell("def value():\n    return 1")
    remote = kt.fn(main.value).to(warm)
    assert remote() == 1
    cell("def value():\n    return 2")
    assert remote() == 2


def test_a_function_of_a_script(project, warm, start_client):
    client = start_client(warm, "def twice(x):\n    return 2 * x\nprint(remote(twice)(4))")
    assert client.finish() == "8\n"


def test_failed_reload_is_retried(project, warm):
    project.write("{stem}_low.py", "VALUE = 1\n")
    project.write(
        "{stem}_top.py",
        "from {stem}_low import VALUE\nimport {stem}_low as low\n\n"
        "def both():\n    return VALUE, low.VALUE\n",
    )
    remote = kt.fn(project.load("{stem}_top").both, keep="process").to(warm)
    assert remote() == (1, 1)
    project.write("{stem}_low.py", "VALUE = 1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            remote()
    project.write("{stem}_low.py", "VALUE = 4\n")
    assert remote() == (4, 4)
    project.write("{stem}_low.py", "VALUE = 5\n")
    assert remote() == (5, 5)
