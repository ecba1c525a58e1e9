"""Imports before the fork. torch is imported if the source imports it, its compiler only if it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import windlass as wl
from windlass.client.jobs.source_analysis import TORCH, TRAINING, choose_preload


@pytest.fixture
def write(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "train.py"

    return write


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "import os, torch.nn as nn",
        "from torch import nn",
        "from torch.utils.data import DataLoader",
        "def f():\n    import torch",
        "try:\n    import torch\nexcept ImportError: pass",
    ],
)
def test_direct_imports(write, text):
    assert choose_preload(write(train=text)) == TORCH


@pytest.mark.parametrize(
    "text",
    [
        "from windlass.train import get_context",
        "import windlass\nfrom windlass import train",
        "import windlass.recipes.llm.llama",
        "import torch\ndef f():\n    from windlass.train import TorchTrainer",
        "import loop",
    ],
)
def test_later_imports_of_the_training_library(write, text):
    assert choose_preload(write(train=text, loop="import windlass.train")) == TRAINING


def test_imports_for_training_are_safe_to_fork():
    code = "import importlib, os, sys\n"
    code += f"for name in {TRAINING!r}: importlib.import_module(name)\n"
    code += "print(len(os.listdir('/proc/self/task')), 'torch._dynamo' in sys.modules)"
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # same value as in the fork server
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert run.stdout.split() == ["1", "False"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os, json",
        "torch = 1",
        "# import torch",
        "print('import torch')",
        "import torchless_thing",
        "import windlass",
        "this is no python",
        "x = '\0'",
        f"from {'.' * 90}x import y",
    ],
)
def test_no_imports(write, text):
    assert choose_preload(write(train=text)) == ()


def test_imports_through_project_files(write):
    script = write(train="import model", model="from pkg.deep import net", pkg__deep="import torch")
    assert choose_preload(script) == TORCH
    assert choose_preload(write(train="from pkg import deep")) == TORCH
    assert choose_preload(write(train="import pkg", pkg__INIT="from pkg import deep")) == TORCH
    assert choose_preload(write(train="import other", other="import train")) == ()


def test_relative_imports_of_a_package(write):
    script = write(
        train="import pkg", pkg__INIT="from .model import Net", pkg__model="import torch"
    )
    assert choose_preload(script) == TORCH
    script = write(
        train="import pkg", pkg__INIT="from . import nets", pkg__nets="import torch", pkg__model=""
    )
    assert choose_preload(script) == TORCH
    script = write(
        train="import pkg.sub.inner",
        pkg__INIT="",
        pkg__nets="",
        pkg__sub__inner="from ..far import x",
        pkg__far="import torch",
    )
    assert choose_preload(script) == TORCH


def test_compiler_is_imported_by_the_ranks(write):
    ddp = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP"
    assert choose_preload(write(train=ddp)) == TORCH
    assert choose_preload(write(train="import model, torch", model="x = torch.compile")) == TORCH


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Write a package as pip installs it, on the import path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])

    def install(name, *requires):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        lines = [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines]) + "\n"
        )

    return install


@pytest.mark.parametrize(
    "requires",
    [
        "torch",
        "torch>=2.0",
        "torch==2.1.0",
        "torch (>=1.9)",
        "torch<4.0,>=2.1.0",  # as lightning imports it
        "torch~=2.0",
        "torch!=2.0.1",
        "torch ; python_version >= '3.8'",
        "torch; python_version >= '3.8'",
        "torch[opt]>=2",
    ],
)
def test_imports_through_an_installed_package(write, install, requires):
    install("liblightning", "numpy", requires)
    assert choose_preload(write(train="from liblightning.pytorch import Trainer")) == TORCH


@pytest.mark.parametrize(
    "requires", ["torchvision", "torch-geometric>=1", "torch_fidelity", "pytorch", "torch.nn"]
)
def test_package_with_other_requirements(write, install, requires):
    install("libother", requires)
    assert choose_preload(write(train="import libother")) == ()


def test_a_file_of_the_project_hides_an_installed_package(write, install):
    install("libshadow", "torch")
    assert choose_preload(write(train="import libshadow", libshadow="")) == ()


def test_missing_script(tmp_path):
    assert choose_preload(tmp_path / "none.py") == ()


def test_search_stops_after_many_files(write, tmp_path):
    for number in range(300):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\n")
    (tmp_path / "m300.py").write_text("import torch\n")
    assert choose_preload(write(train="import m0")) == ()
    assert Path(tmp_path / "m300.py").exists()


def test_training_job_finds_the_imports_done(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        f"ahead = all(name in sys.modules for name in {TRAINING!r})\n"
        "import windlass.train\n"
        "print('imported ahead:', ahead)\n"
    )
    job = wl.submit(str(script))
    job.wait(timeout_s=120)
    assert "imported ahead: True" in "\n".join(line.text for line in job.logs())
