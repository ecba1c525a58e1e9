"""Attack: another user puts a settings file above a project that names a program to run as `python`."""

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
    """Write the program that the stranger wants to run. It creates a file when it runs."""
    stranger.home.chmod(0o777)
    mark = stranger.home / "mark"
    return mark, stranger.write("evil", f"#!/bin/sh\necho ran as $(id -u) > {mark}\n", mode=0o755)


@pytest.fixture
def project(victim):
    """Return a project in a folder that all users share."""
    victim.home.chmod(0o755)
    (victim.home / "scratch").mkdir()
    folder = victim.mkdir(victim.home / "scratch" / "project")
    victim.write("hello.py", "print('hello')", folder=folder)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_file_of_another_user_above_the_project_is_ignored(
    victim, stranger, program, project, name
):
    mark, path = program
    settings = stranger.write(name, FILES[name].format(program=path), folder=project.parent)
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stdout
    assert not mark.exists()
    message = f"{settings} is ignored: {settings} belongs to another user (uid {stranger.uid})"
    assert ran.stderr.count(message) == 1


def test_file_of_another_user_in_the_project_is_ignored(victim, stranger, program, project):
    mark, path = program
    settings = stranger.write(
        "windlass.toml", FILES["windlass.toml"].format(program=path), folder=project
    )
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()
    assert f"{settings} is ignored" in ran.stderr


def test_link_to_a_file_of_another_user_is_ignored(victim, stranger, program, project):
    mark, path = program
    theirs = stranger.write("windlass.toml", FILES["windlass.toml"].format(program=path))
    (project / "windlass.toml").symlink_to(theirs)
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()


def test_link_of_another_user_to_our_file_is_ignored(victim, stranger, project):
    """Other users may not choose which of this user's files is read."""
    ours = victim.write("other.toml", "nodes = 4\n")
    link = project / "windlass.toml"
    link.symlink_to(ours)
    stranger.give(link)
    shown = victim.windlass("config", cwd=project)
    assert f"{link} is ignored: {link} belongs to another user" in shown.stderr
    line = next(line for line in shown.stdout.splitlines() if line.startswith("nodes "))
    assert "default" in line


@pytest.mark.parametrize("name", FILES)
def test_pipe_of_another_user_does_not_block(victim, stranger, project, name):
    os.mkfifo(project / name)
    stranger.give(project / name)
    ran = victim.windlass("run", "hello.py", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert f"{project / name} is ignored" in ran.stderr


def test_link_to_a_device_is_ignored(tmp_path, caplog):
    """/dev/zero belongs to root, so the owner check passes, and reading it never ends."""
    (tmp_path / "windlass.toml").symlink_to("/dev/zero")
    assert _read(tmp_path).nodes == 1
    assert "windlass.toml is not a plain file" in caplog.text


def test_config_file_of_another_user_is_ignored(victim, stranger, program, project):
    mark, path = program
    config = stranger.mkdir(victim.home / "config", 0o755)
    (config / "windlass").mkdir()
    text = FILES["windlass.toml"].format(program=path)
    settings = stranger.write("config.toml", text, folder=config / "windlass")
    ran = victim.windlass("run", "hello.py", cwd=project, XDG_CONFIG_HOME=str(config))
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()
    assert f"{settings} is ignored" in ran.stderr


def test_files_of_user_and_root_are_read(victim, project):
    (project.parent / "windlass.toml").write_text("nodes = 3\n")  # owned by root
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
def test_search_stops_at_a_world_writable_folder(tmp_path, caplog, mode):
    """This includes this user's own files, because another user could have moved one there."""
    shared = _make_shared(tmp_path, mode)
    for folder, nodes in ((shared, 3), (tmp_path, 4)):
        (folder / "windlass.toml").write_text(f"nodes = {nodes}\n")
    assert _read(shared / "project").nodes == 1
    for folder in (shared, tmp_path):
        assert (
            f"{folder / 'windlass.toml'} is ignored: any user may write to {shared}" in caplog.text
        )


def test_own_file_in_the_working_directory_is_read(tmp_path, caplog):
    shared = _make_shared(tmp_path, 0o1777)
    (shared / "windlass.toml").write_text("nodes = 3\n")
    assert _read(shared).nodes == 3
    assert caplog.text == ""


def test_group_writable_folder_is_searched(tmp_path):
    shared = _make_shared(tmp_path, 0o775)
    (shared / "windlass.toml").write_text("nodes = 3\n")
    assert _read(shared / "project").nodes == 3


def test_nothing_is_logged_if_no_file_is_ignored(tmp_path, caplog):
    shared = _make_shared(tmp_path, 0o777)
    assert _read(shared / "project").nodes == 1
    assert caplog.text == ""
