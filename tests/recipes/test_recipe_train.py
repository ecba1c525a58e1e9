"""Smoke test: its lines, its flags, and its image."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import pytest

from windlass.names import VERSION
from windlass.recipes.train import SmokeOptions, main, make_data

ROOT = Path(__file__).parents[2]


def test_it_trains_and_prints_lines_that_can_be_grepped(capsys, tmp_path):
    main(
        ["--epochs", "2", "--samples", "512", "--batch=128", "--log-every", "2", "--run-id", "mine"]
    )
    lines = capsys.readouterr().out.splitlines()
    tags = [line[: line.index("]") + 1] for line in lines]
    assert set(tags) == {"[DDP]", "[TRAIN]", "[VALID]", "[EPOCH]", "[DONE]"}
    assert tags.count("[EPOCH]") == 2
    done = lines[tags.index("[DONE]")]
    assert "steps=8" in done
    assert f"out={tmp_path}/out/mine" in done
    (accuracy,) = re.findall(r"epoch=2 .*val_accuracy=([\d.]+)", "\n".join(lines))
    assert float(accuracy) > 0.9


def test_its_data_depends_on_the_seed_alone():
    first, second = make_data(SmokeOptions(seed=1)), make_data(SmokeOptions(seed=1))
    other = make_data(SmokeOptions(seed=2))
    assert len(first[0]) == 4096
    assert first[0][7][0].equal(second[0][7][0])
    assert not first[0][7][0].equal(other[0][7][0])


def test_wrong_flags_are_reported_in_two_lines(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--epoch", "2"])
    assert ended.value.code == 2
    assert "did you mean epochs" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--samples 4096" in capsys.readouterr().out


def test_image_has_both_at_the_paths_in_guides(tmp_path):
    text = files("windlass").joinpath("recipes", "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^RUN (mkdir (?:.*\\\n)*.*)", text, flags=re.MULTILINE)
    shell = command.replace("/app", str(tmp_path / "app"))
    subprocess.run(["sh", "-ec", shell], check=True)
    app = tmp_path / "app"
    assert sorted(str(path.relative_to(app)) for path in app.rglob("*.py")) == [
        "k8s-training/k8s/train.py",
        "main.py",
        "src/train.py",
        "src/train_framework.py",
    ]
    ran = subprocess.run(
        [sys.executable, str(app / "src/train_framework.py"), "--help"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "--model-local-dir none" in ran.stdout


def test_image_pins_the_versions_of_the_suite():
    text = files("windlass").joinpath("recipes", "Dockerfile").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints-dev.txt").read_text()
    known = dict(
        re.findall(r"^([\w-]+)==([\d.]+)(?:$|; python_version >=)", constraints, re.MULTILINE)
    )
    (base,) = re.findall(
        r"^ARG BASE=pytorch/pytorch:([\d.]+)-cuda[\d.]+-cudnn\d+-runtime$", text, re.M
    )
    assert base == known["torch"]
    pins = dict(re.findall(r"\b([a-z]+)==([\d.]+)\b", text))
    assert {name: known[name] for name in pins} == pins
    assert pins.keys() == {"transformers", "peft", "accelerate", "safetensors", "mlflow", "numpy"}
    assert f'ARG WINDLASS="windlass[llm,mlflow]=={VERSION}"' in text


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["windlass", "torchrun"])
def test_it_runs_under_launchers(launcher, tmp_path, home):
    module = ["-m", "windlass.recipes.train"]
    flags = ["--samples", "512", "--batch", "64", "--epochs", "1"]
    words = {
        "windlass": ["windlass.cli.main", "run", *module, "--procs", "2", "--", *flags],
        "torchrun": ["torch.distributed.run", "--nproc-per-node", "2", *module, *flags],
    }[launcher]
    ran = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, cwd=tmp_path, timeout=170
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[DDP] world_size=2" in ran.stdout
    assert "[DONE] steps=8" in ran.stdout


class _RecordingServer(BaseHTTPRequestHandler):
    """Refuses every request and records its path."""

    paths: ClassVar[list[str]] = []

    def do_GET(self):
        self.paths.append(self.path)
        self.send_error(400)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


def test_metrics_go_to_mlflow_if_its_address_is_set(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), _RecordingServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "*")
        main(["--steps", "1", "--samples", "512"])
        server.shutdown()
    assert any("/api/2.0/mlflow/experiments/get-by-name" in path for path in _RecordingServer.paths)
