"""Variables set before torch is imported. The client finds them in the source that Python runs first."""

from __future__ import annotations

import pytest

from windlass.client.jobs.source_analysis import find_early_write


@pytest.fixture
def find(tmp_path):
    def find(train, function="", **files):
        for name, text in {"train": train, **files}.items():
            path = tmp_path / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = find_early_write([tmp_path / "train.py"], tmp_path, function=function)
        return None if found is None else (found.path.name, found.line, found.name)

    return find


SET = 'os.environ["OMP_NUM_THREADS"] = "3"'


@pytest.mark.parametrize(
    "line",
    [
        SET,
        "os.environ['TORCH_LOGS'] = logs = '+dynamo'",
        "os.environ.setdefault('TORCH_DISTRIBUTED_DEBUG', 'DETAIL')",
        "os.environ.update({'CUDA_VISIBLE_DEVICES': '0'})",
        "os.environ.update(MKL_NUM_THREADS='1')",
        "os.environ |= {'OMP_NUM_THREADS': '1'}",
        "os.environ.pop('OMP_NUM_THREADS', None)",
        "del os.environ['OMP_NUM_THREADS']",
        "os.putenv('OMP_NUM_THREADS', '1')",
        "os.environ[f'OMP_{x}'] = '1'",
        "os.environ.update(read_file())",
        "for name in config: os.environ[name] = '1'",
        "if 'OMP_NUM_THREADS' not in os.environ: os.environ['OMP_NUM_THREADS'] = '1'",
        "environ['OMP_NUM_THREADS'] = '1'",
        "mine['OMP_NUM_THREADS'] = '1'",
        "if x := os.environ.setdefault('OMP_NUM_THREADS', '1'): pass",
        "load_dotenv()",
        "try:\n    os.environ['KMP_BLOCKTIME'] = '0'\nfinally: pass",
        "with open('x'): os.environ['KMP_BLOCKTIME'] = '0'",
        "def setup():\n    os.environ['OMP_NUM_THREADS'] = '1'\nsetup()",
        "class A:\n    os.environ['OMP_NUM_THREADS'] = '1'",
    ],
)
def test_every_way_to_set_one(find, line):
    head = "import os\nfrom os import environ\nmine = os.environ\n"
    assert find(f"{head}{line}\nimport torch\n") is not None
    assert find(f"{head}import torch\n{line}\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['MASTER_ADDR'] = 'localhost'",
        "os.environ.setdefault('RANK', '0')",
        "os.environ.update(WORLD_SIZE='1', LOCAL_RANK='0')",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ['TOKENIZERS_PARALLELISM'] = 'false'",
        "os.environ['PYTHONHASHSEED'] = '1'",
        "x = os.environ['OMP_NUM_THREADS']",
        "x = os.environ.get('OMP_NUM_THREADS')",
        "os.environ['OMP_NUM_THREADS'] == '1'",
        "other['OMP_NUM_THREADS'] = '1'",
        "if TYPE_CHECKING:\n    os.environ['OMP_NUM_THREADS'] = '1'",
    ],
)
def test_variables_not_read_on_import_do_not_count(find, line):
    assert find(f"import os\n{line}\nimport torch\n") is None


@pytest.mark.parametrize(
    ("train", "files", "found"),
    [
        (f"import os\n{SET}\nimport model", {"model": "import torch"}, ("train.py", 2)),
        ("import setup\nimport torch", {"setup": f"import os\n{SET}"}, ("setup.py", 2)),
        ("import torch\nimport setup", {"setup": f"import os\n{SET}"}, None),
        ("import model\nimport setup", {"model": "import torch", "setup": SET}, None),
        ("import setup, model", {"model": "import torch", "setup": SET}, ("setup.py", 1)),
        ("from pkg.deep import x", {"pkg__INIT": SET, "pkg__deep": ""}, ("__init__.py", 1)),
        ("from pkg import x", {"pkg__INIT": "from . import env", "pkg__env": SET}, ("env.py", 1)),
        ("import a", {"a": "import b\nimport torch", "b": f"import a\n{SET}"}, ("b.py", 2)),
        (f"try: import torch\nexcept ImportError: pass\n{SET}", {}, None),
        (f"if fast: import torch\n{SET}", {}, ("train.py", 2)),
        (f"if a: import torch\nelse: import torch.nn\n{SET}", {}, None),
        (f"def f():\n    import torch\n    {SET}", {}, None),
        (f"def f():\n    {SET}\n    import torch", {}, ("train.py", 2)),
        (f"def f(): import torch\n{SET}", {}, ("train.py", 2)),
        (f"import torchvision_thing\n{SET}", {}, ("train.py", 2)),
        ("this is no python", {}, None),
    ],
)
def test_execution_order_of_python(find, train, files, found):
    where = find(train, **files)
    assert (where and where[:2]) == found


def test_function_sent_by_value_runs_alone(find):
    source = f"import torch\n{SET}\ndef quiet(): pass\ndef loud():\n    {SET}\n"
    assert find(source) is None
    assert find(source, "quiet") is None
    assert find(source, "loud") == ("train.py", 5, "OMP_NUM_THREADS")
