"""Two users of one machine, for attacks that need them: the victim, who runs Windlass, and somebody else.

Only root can be two others. Their numbers are new for every test, so that no test meets what another left.
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
    """Somebody on this machine, with a home of mode 0700."""

    uid: int
    home: Path

    def run(
        self, *argv: str, cwd: Path | None = None, umask: int = 0o022, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user; its output is kept."""
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
        """An interpreter that this user may run, with what this one has installed."""
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
        """Run a program, from a file: functions travel only with one."""
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
        """A file of this user's."""
        path = (folder or self.home) / name
        path.write_text(text)
        path.chmod(mode)
        self.give(path)
        return path

    def mkdir(self, path: Path, mode: int = 0o700) -> Path:
        """A folder of this user's."""
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
    """What a test that failed left running; the number is nobody else's."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
def victim() -> Iterator[User]:
    """Who runs Windlass."""
    yield from _make_user()


@pytest.fixture
def stranger() -> Iterator[User]:
    """Somebody else on the same machine."""
    yield from _make_user()
