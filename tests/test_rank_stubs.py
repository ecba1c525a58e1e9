"""User modules in ranks. They must import even where only the agent's archive is available."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import windlass as kt
from windlass.engines.archives import build_archive

MODULE = """
import windlass as kt

vol = kt.Volume(name="shared-data", size="1Ti", mount_path="/data")
image = kt.images.pytorch("24.08-py3").pip_install(["numpy"])
nodes = kt.Compute(gpus=8, image=image, volumes=[vol], secrets=[kt.Secret("hf")])
app = kt.app(name="ddp", cli_command="torchrun train.py", gpus=8)

@kt.compute(gpus=8, volumes=[vol])
@kt.distribute(framework="pytorch", workers=2)
def train(lr):
    return ["trained", lr, vol.mount_path]

@kt.compute
class Trainer:
    def __init__(self, lr):
        self.lr = lr

remote = kt.fn(train).to(nodes).distribute(framework="pytorch", workers=4)
"""
USE = """
import json, user_module as user, windlass
assert isinstance(user.Trainer, type)
print(json.dumps([user.train(1), user.train.local(2), user.remote(3), user.Trainer(4).lr]))
try:
    windlass.run(user.train)
except AttributeError as error:
    print(error)
"""


def test_import_from_the_archive_alone(tmp_path):
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(build_archive())
    (tmp_path / "user_module.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-S", "-c", USE],
        env={"PYTHONPATH": f"{tmp_path}:{archive}", "WINDLASS_JOB_ID": "j"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    values, refusal = done.stdout.splitlines()
    assert json.loads(values) == [*(["trained", n, "/data"] for n in (1, 2, 3)), 4]
    assert "windlass.run is available only in clients" in refusal


DECORATED = """
import windlass as kt

@kt.distribute(framework="pytorch", workers=2)
def where(word):
    return [word, type(where).__name__, where.local.__name__]
"""


@pytest.mark.parametrize("on", ["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def test_ranks_find_the_plain_function(on, request, tmp_path, monkeypatch):
    (tmp_path / "windlass.toml").touch()
    (tmp_path / "decorated_module.py").write_text(DECORATED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if on == "kubernetes":
        for name, value in request.getfixturevalue("space").settings.items():
            monkeypatch.setenv(name, value)
    request.addfinalizer(lambda: sys.modules.pop("decorated_module"))
    import decorated_module

    assert type(decorated_module.where).__name__ == "Decorated"
    found = kt.run(decorated_module.where, ("hello",), engine=on, procs=2, quiet=True)
    assert found == [["hello", "function", "where"]] * 2
