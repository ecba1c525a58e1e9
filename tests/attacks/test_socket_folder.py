"""Attack: another user's process listens where a client looks for its lead, to read secrets and to answer.

Sockets are in the temporary folder, and the job's own folder records the exact path. Clients check the owner
of the folder and of the process before they send anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from waits import wait_for

from windlass import EngineError
from windlass.engines.local.lead_socket import dial_lead, find_socket_folder, record_socket_folder
from windlass.trusted import find_peer_fault, make_own
from windlass.wire.job_folder import JobFolder

STAY = """
import time
from pathlib import Path

while not Path("flag").exists():
    time.sleep(0.05)
"""
# Prints "up" when it listens, and then the number of bytes it received.
LISTEN = """
import socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.bind(sys.argv[1])
server.listen()
print("up", flush=True)
print(len(server.accept()[0].recv(1)), flush=True)
"""


@contextlib.contextmanager
def _listening(user, path: Path):
    process = user.start("/usr/bin/env", "python3", "-c", LISTEN, str(path), PYTHONPATH="")
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def job(tmp_path):
    """Yield a job folder whose sockets are in a folder of this user."""
    folder = JobFolder(tmp_path / "job")
    folder.path.mkdir()
    with tempfile.TemporaryDirectory(prefix="wl") as made:
        (Path(made) / "job").mkdir(mode=0o700)
        record_socket_folder(folder, Path(made) / "job")
        yield folder


def test_client_with_another_tmpdir_finds_its_lead(victim, stranger):
    script = victim.write("stay.py", STAY)
    submitted = victim.windlass("run", "--detach", str(script))
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip().rpartition("/")[2]
    trap = stranger.home
    trap.chmod(0o755)
    for folder in (trap / f"windlass-{victim.uid}", trap / f"windlass-{victim.uid}" / job_id):
        stranger.mkdir(folder, 0o755)
    with _listening(stranger, folder / "lead.sock") as fake:
        (folder / "lead.sock").chmod(0o777)
        ended = victim.windlass("cancel", job_id, TMPDIR=str(trap))
        assert ended.returncode == 0, ended.stderr
        assert fake.poll() is None  # the fake has received no connection
    assert '"cancelled"' in victim.windlass("status", job_id, "--json").stdout


def test_socket_folder_of_another_user_is_refused_by_name(job, stranger):
    sockets = find_socket_folder(job)
    sockets.rmdir()
    stranger.mkdir(sockets, 0o755)
    with _listening(stranger, stranger.home / "lead.sock") as fake:
        (stranger.home / "lead.sock").rename(sockets / "lead.sock")
        with pytest.raises(EngineError, match=f"{sockets} belongs to another user"):
            dial_lead(job)
        assert fake.poll() is None


def test_socket_folder_below_a_foreign_folder_is_refused_by_name(job, stranger):
    parent = find_socket_folder(job).parent
    stranger.give(parent)
    with pytest.raises(EngineError, match=f"{parent} belongs to another user"):
        dial_lead(job)
    os.chown(parent, os.geteuid(), -1)


def test_socket_folder_that_is_a_link_is_refused_by_name(job, tmp_path):
    sockets = find_socket_folder(job)
    sockets.rmdir()
    (tmp_path / "other").mkdir(mode=0o700)
    sockets.symlink_to(tmp_path / "other")
    with pytest.raises(EngineError, match="is a link"):
        dial_lead(job)
    sockets.unlink()
    sockets.mkdir()


def test_nothing_is_sent_to_a_process_of_another_user(job, stranger):
    """The folder belongs to this user, but another user's socket was moved into it."""
    theirs = stranger.home / "lead.sock"
    with _listening(stranger, theirs) as fake:
        theirs.rename(find_socket_folder(job) / "lead.sock")
        with pytest.raises(EngineError, match=rf"another user \(uid {stranger.uid}\) listens"):
            dial_lead(job)
        assert fake.stdout.readline() == "0\n"  # the client disconnected without sending anything


def test_own_process_is_accepted(job):
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(server):
        server.bind(str(find_socket_folder(job) / "lead.sock"))
        server.listen()
        with dial_lead(job) as connection:
            connection.sendall(b"hello")
            with server.accept()[0] as accepted:
                assert accepted.recv(5) == b"hello"


def test_only_the_folder_is_checked_without_peer_credentials(monkeypatch):
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert find_peer_fault(ours) == ""


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_folders_below_the_home_are_private_with_any_umask(victim, umask):
    script = victim.write("hello.py", "print('hello')")
    home = victim.home / "own"
    ran = victim.windlass("run", "--nodes", "2", str(script), umask=umask, WINDLASS_HOME=str(home))
    assert ran.returncode == 0, ran.stderr
    folders = [Path(top) for top, _, _ in os.walk(home)]
    assert len(folders) >= 4  # folders of the home, the jobs, the job and its attempt
    modes = {str(folder): oct(stat.S_IMODE(folder.stat().st_mode)) for folder in folders}
    assert set(modes.values()) == {oct(0o700)}, modes


def test_existing_home_keeps_its_mode(victim):
    script = victim.write("hello.py", "print('hello')")
    home = victim.mkdir(victim.home / "own", 0o755)
    assert victim.windlass("run", str(script), WINDLASS_HOME=str(home)).returncode == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    assert stat.S_IMODE((home / "jobs").stat().st_mode) == 0o700


def test_foreign_jobs_folder_in_our_home_is_refused_by_name(victim, stranger):
    """Without the check, the client would unpickle results of the other user."""
    script = victim.write("hello.py", "print('hello')")
    home = victim.mkdir(victim.home / "own")
    stranger.mkdir(home / "jobs", 0o777)
    for argv in (["run", str(script)], ["ls"], ["status", "some-job"]):
        ran = victim.windlass(*argv, WINDLASS_HOME=str(home))
        assert ran.returncode == 3, (argv, ran.stdout)
        assert f"{home / 'jobs'} belongs to another user" in ran.stderr
    wait_for(lambda: not list((home / "jobs").iterdir()), "nothing was put there", 5.0)


def test_new_folders_above_the_home_are_private(victim):
    """A user who may write to ~/.local could replace what is below it."""
    script = victim.write("hello.py", "print('hello')")
    ran = victim.windlass("run", str(script), umask=0)
    assert ran.returncode == 0, ran.stderr
    made = [victim.home / path for path in (".local", ".local/state", ".cache", ".cache/windlass")]
    assert {oct(stat.S_IMODE(folder.stat().st_mode)) for folder in made} == {oct(0o700)}


def test_home_created_by_root_is_refused_with_a_hint(victim):
    """One `sudo windlass run` that keeps $HOME leaves such a home."""
    script = victim.write("hello.py", "print('hello')")
    roots = victim.home / ".local" / "state" / "windlass"
    roots.mkdir(parents=True)
    roots.chmod(0o700)
    for argv in (["run", str(script)], ["ls"]):
        ran = victim.windlass(*argv)
        assert ran.returncode == 3, (argv, ran.stdout)
        assert f"{roots / 'jobs'}: Permission denied" in ran.stderr
        assert "WINDLASS_HOME" in ran.stderr


def test_home_on_a_file_system_without_modes_is_used(tmp_path, monkeypatch):
    """Some network disks refuse chmod even to the owner."""

    def refuse(path, mode):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(os, "chmod", refuse)
    make_own(tmp_path / "home" / "jobs" / "job", below=tmp_path / "home", is_new=True)
    assert (tmp_path / "home" / "jobs" / "job").is_dir()
