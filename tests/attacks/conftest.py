"""Two users of one machine for attacks: the victim, who runs Windlass, and a stranger.

Only root can act as other users. Each test gets new uids, so no test meets files that another one left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class User:
    """User of this machine with a home directory of mode 0700."""

    uid: int
    home: Path

    def run(
        self, *argv: str, cwd: Path | None = None, umask: int = 0o022, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user and capture its output."""
        return subprocess.run(
            argv, cwd=cwd or self.home, env=self.environ(**env), user=self.uid, group=self.uid,
            extra_groups=[], umask=umask, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv, cwd=self.home, env=self.environ(**env), user=self.uid, group=self.uid,
            extra_groups=[], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @functools.cached_property
    def python_path(self) -> str:
        """Path of an interpreter that this user may run and that has the same packages as this one."""
        minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
        for path in (sys.executable, f"/usr/bin/python{minor}", f"/usr/local/bin/python{minor}"):
            with contextlib.suppress(OSError):
                if self.run(path, "-c", "import windlass.cli.main").returncode == 0:
                    return path
        pytest.skip("another user can run no Python of this version here")

    def windlass(self, *argv: str, **keywords: object) -> subprocess.CompletedProcess[str]:
        command = (self.python_path, "-m", "windlass.cli.main", *argv)
        return self.run(*command, **keywords)  # type: ignore[arg-type]

    def python(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run code from a file, because only functions that are in a file can be sent."""
        program = self.write("program.py", code)
        return self.run(self.python_path, str(program), **env)

    def environ(self, **env: str) -> dict[str, str]:
        installed = [path for path in sys.path if path.endswith(("site-packages", "/src"))]
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(installed),
            "WINDLASS_ENGINE": "local",
            **env,
        }

    def write(self, name: str, text: str, *, folder: Path | None = None, mode: int = 0o644) -> Path:
        """Write a file that this user owns."""
        path = (folder or self.home) / name
        path.write_text(text)
        path.chmod(mode)
        self.give(path)
        return path

    def mkdir(self, path: Path, mode: int = 0o700) -> Path:
        """Make a directory that this user owns."""
        path.mkdir()
        path.chmod(mode)
        self.give(path)
        return path

    def give(self, path: Path) -> None:
        os.chown(path, self.uid, self.uid, follow_symlinks=False)


def _make_user() -> Iterator[User]:
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    uid = random.randrange(200_000, 2_000_000)
    home = Path(tempfile.mkdtemp(prefix="wl"))
    user = User(uid, home)
    user.give(home)
    yield user
    _end_processes(uid)
    shutil.rmtree(home, ignore_errors=True)
    for left in (Path(f"/tmp/windlass-{uid}"), Path(f"/dev/shm/windlass-{uid}")):
        if left.is_symlink():
            left.unlink()
        shutil.rmtree(left, ignore_errors=True)


def _end_processes(uid: int) -> None:
    """Kill the processes that a failed test left running. Only this test uses the uid."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
def victim() -> Iterator[User]:
    """Yield the user who runs Windlass."""
    yield from _make_user()


@pytest.fixture
def stranger() -> Iterator[User]:
    """Yield another user of the same machine."""
    yield from _make_user()
