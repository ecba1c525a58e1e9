"""Attack: somebody else puts a settings file above a project, which names a program to run as `python`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.settings import read_settings

FILES = {
    "windlass.toml": 'python = "{program}"\n',
    "pyproject.toml": '[tool.windlass]\npython = "{program}"\n',
}


@pytest.fixture
def program(stranger):
    """What the stranger wants to be run: it leaves a mark."""
    stranger.home.chmod(0o777)
    mark = stranger.home / "mark"
    return mark, stranger.write("evil", f"#!/bin/sh\necho ran as $(id -u) > {mark}\n", mode=0o755)


@pytest.fixture
def project(victim):
    """A project in a folder that everybody shares."""
    victim.home.chmod(0o755)
    (victim.home / "scratch").mkdir()
    folder = victim.mkdir(victim.home / "scratch" / "project")
    victim.write("hello.py", "print('hello')", folder=folder)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_somebody_else_above_a_project_is_ignored_and_that_is_said(
    victim, stranger, program, project, name
):
    mark, path = program
    settings = stranger.write(name, FILES[name].format(program=path), folder=project.parent)
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stdout
    assert not mark.exists()
    said = f"{settings} is ignored: {settings} belongs to another user (uid {stranger.uid})"
    assert ran.stderr.count(said) == 1


def test_a_file_of_somebody_else_in_the_project_itself_is_ignored(
    victim, stranger, program, project
):
    mark, path = program
    settings = stranger.write(
        "windlass.toml", FILES["windlass.toml"].format(program=path), folder=project
    )
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()
    assert f"{settings} is ignored" in ran.stderr


def test_a_link_that_leads_to_a_file_of_somebody_else_is_ignored(
    victim, stranger, program, project
):
    mark, path = program
    theirs = stranger.write("windlass.toml", FILES["windlass.toml"].format(program=path))
    (project / "windlass.toml").symlink_to(theirs)
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()


def test_a_link_of_somebody_else_that_leads_to_a_file_of_ours_is_ignored(victim, stranger, project):
    """Which of our files is read is not for others to choose."""
    ours = victim.write("other.toml", "nodes = 4\n")
    link = project / "windlass.toml"
    link.symlink_to(ours)
    stranger.give(link)
    shown = victim.windlass("config", cwd=project)
    assert f"{link} is ignored: {link} belongs to another user" in shown.stderr
    line = next(line for line in shown.stdout.splitlines() if line.startswith("nodes "))
    assert "default" in line


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_that_somebody_left_in_place_of_the_file_keeps_nobody(
    victim, stranger, project, name
):
    os.mkfifo(project / name)
    stranger.give(project / name)
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert f"{project / name} is ignored" in ran.stderr


def test_a_link_to_a_device_is_ignored(tmp_path, caplog):
    """/dev/zero belongs to root, and has no end."""
    (tmp_path / "windlass.toml").symlink_to("/dev/zero")
    assert _read(tmp_path).nodes == 1
    assert "windlass.toml is not a plain file" in caplog.text


def test_a_config_file_of_somebody_else_is_ignored(victim, stranger, program, project):
    mark, path = program
    config = stranger.mkdir(victim.home / "config", 0o755)
    (config / "windlass").mkdir()
    text = FILES["windlass.toml"].format(program=path)
    settings = stranger.write("config.toml", text, folder=config / "windlass")
    ran = victim.windlass("run", "hello.py", cwd=project, XDG_CONFIG_HOME=str(config))
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()
    assert f"{settings} is ignored" in ran.stderr


def test_files_of_ours_and_of_root_are_read(victim, project):
    (project.parent / "windlass.toml").write_text("nodes = 3\n")  # root's
    shown = victim.windlass("config", cwd=project)
    assert str(project.parent / "windlass.toml") in shown.stdout, shown.stderr
    victim.write("windlass.toml", "nodes = 4\n", folder=project)
    shown = victim.windlass("config", cwd=project)
    assert str(project / "windlass.toml") in shown.stdout, shown.stderr


def _read(start: Path):
    return read_settings(flags={}, environ={}, start=start, user_file=start / "none.toml")


def _make_shared(tmp_path: Path, mode: int) -> Path:
    shared = tmp_path / "shared"
    (shared / "project").mkdir(parents=True)
    shared.chmod(mode)
    return shared


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_the_search_stops_at_a_folder_that_everybody_may_write_to(tmp_path, caplog, mode):
    """Also for files of our own: who can write there can bring one here that we left elsewhere."""
    shared = _make_shared(tmp_path, mode)
    for folder, nodes in ((shared, 3), (tmp_path, 4)):
        (folder / "windlass.toml").write_text(f"nodes = {nodes}\n")
    assert _read(shared / "project").nodes == 1
    for folder in (shared, tmp_path):
        assert (
            f"{folder / 'windlass.toml'} is ignored: anybody may write to {shared}" in caplog.text
        )


def test_a_file_of_ours_where_we_are_is_read_wherever_that_is(tmp_path, caplog):
    shared = _make_shared(tmp_path, 0o1777)
    (shared / "windlass.toml").write_text("nodes = 3\n")
    assert _read(shared).nodes == 3
    assert caplog.text == ""


def test_a_folder_that_only_its_group_may_write_to_is_searched(tmp_path):
    shared = _make_shared(tmp_path, 0o775)
    (shared / "windlass.toml").write_text("nodes = 3\n")
    assert _read(shared / "project").nodes == 3


def test_nothing_is_said_where_nothing_is_ignored(tmp_path, caplog):
    shared = _make_shared(tmp_path, 0o777)
    assert _read(shared / "project").nodes == 1
    assert caplog.text == ""
