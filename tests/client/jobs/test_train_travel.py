"""Training library in bundles. Only work that imports it is sent with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.client.jobs.packing import needs_train
from windlass.client.jobs.target import read_work_target


@pytest.fixture
def project(tmp_path):
    files = {
        "direct.py": "from windlass.train import get_context\n",
        "late.py": "def main():\n    from windlass import train\n",
        "through.py": "import part.deep\n",
        "part/deep.py": "from windlass.recipes.llm.llama import Llama\n",
        "plain.py": "import torch, windlass\nimport windlass.trainer\n\ndef train(): pass\n",
        "run.sh": "#!/bin/sh\nset -e\nexec torchrun 'direct.py' --lr 1\n",
        "other.sh": "#!/bin/sh\nexec torchrun plain.py\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "direct.py",
        "late.py",
        "through.py",
        "direct.py::get_context",
        "-m windlass.recipes.train",
        ["-m", "direct"],
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", "through.py"],
        ["torchrun", "direct.py"],
        ["torchrun", "-m", "windlass.recipes.train"],
        ["sh", "run.sh"],
        ["sh", "-c", "cd . && python through.py"],
    ],
    ids=str,
)
def test_library_is_sent(project, target):
    assert needs_train(read_work_target(target, cwd=project, is_local=False), project)


@pytest.mark.parametrize(
    "target",
    ["plain.py", "plain.py::train", ["-m", "plain"], ["torchrun", "plain.py"], ["sh", "other.sh"], ["true"]],
    ids=str,
)  # fmt: skip
def test_library_is_not_sent(project, target):
    assert not needs_train(read_work_target(target, cwd=project, is_local=False), project)


def _imports_inside():
    from windlass.train import get_context

    return get_context()


def _imports_nothing():
    return 1


def test_function_by_value(project):
    assert needs_train(read_work_target(_by_value(_imports_inside), cwd=project), project)
    assert not needs_train(read_work_target(_by_value(_imports_nothing), cwd=project), project)


def test_function_by_name():
    here = Path(__file__).parent
    # its file imports the library
    assert needs_train(read_work_target(_imports_nothing, cwd=here), here)


def _by_value(function):
    """Define a function without a file, as in a notebook."""
    import types

    return types.FunctionType(function.__code__, {"__name__": "__main__"}, function.__name__)
