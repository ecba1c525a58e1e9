"""The agent runs under every Python from 3.10 on that this machine has, and says so under an older one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import rank_work as work

import windlass as wl


def _find_pythons() -> dict[str, str]:
    """Each `python3.x` on the PATH and of pyenv that starts, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python3.{minor}") for minor in range(6, 20)]
    candidates += [str(path) for path in pyenv.glob("3.*/bin/python3")]
    found = {}
    for path in filter(None, candidates):
        answer = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        if answer.returncode == 0:
            found.setdefault(answer.stdout.strip(), path)
    return found


PYTHONS = _find_pythons()
NEW = sorted(v for v in PYTHONS if tuple(map(int, v.split("."))) >= (3, 10))
OLD = sorted(set(PYTHONS) - set(NEW))


@pytest.mark.parametrize("version", NEW)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_new_python(version, start):
    found = wl.run(
        work.environment,
        (["RANK"],),
        nodes=2,
        procs=2,
        python=PYTHONS[version],
        start=start,
        quiet=True,
    )
    assert [env["RANK"] for env in found] == ["0", "1", "2", "3"]
    status = wl.jobs()[0].status()
    assert all(node.python.startswith(f"{version}.") for node in status.nodes)


@pytest.mark.parametrize("version", NEW)
def test_failures_under_every_new_python(version):
    job = wl.submit(work.fail, ("raise", 1), procs=2, python=PYTHONS[version])
    assert job.wait(30).verdict.rank == 1
    assert isinstance(job.exception(), ValueError)


@pytest.mark.skipif(not OLD, reason="no Python older than 3.10 here")
@pytest.mark.parametrize("version", OLD)
def test_an_old_python_is_told(version):
    job = wl.submit(work.rank, python=PYTHONS[version])
    verdict = job.wait(30).verdict
    assert verdict.kind.value == "start failed"
    assert f"the nodes run Python {version}, 3.10 or newer is needed" in verdict.message
    with pytest.raises(wl.EngineError, match="--python"):
        job.results()


def test_a_missing_interpreter_is_refused(home):
    with pytest.raises(wl.SpecError, match="there is no interpreter 'no-such-python'"):
        wl.run(work.rank, python="no-such-python")
    assert not (home / "jobs").exists()
