"""Image steps in ranks: any user, any image with pip, no index, and torch is not installed again."""

from __future__ import annotations

import importlib.util

import pytest
from wheels import make_wheel


def make_work():
    """Return a function that is sent by value, because pods do not have the cases."""

    def run_twice(wheel, folder):
        import asyncio
        import os
        import sys
        import tempfile
        from pathlib import Path

        from windlass.agent.image_steps import run_steps
        from windlass.spec.work import PipStep, RunStep

        project = Path(tempfile.mkdtemp(dir=folder or None))
        (project / "needs_torch-1.0-py3-none-any.whl").write_bytes(wheel)
        look = "import needs_torch, torch; print(needs_torch.VALUE, torch.__version__)"
        steps = [
            PipStep(packages=("--no-index", "./needs_torch-1.0-py3-none-any.whl")),
            RunStep(command=f'python -c "{look}" > seen; echo once >> count'),
        ]
        messages: list[str] = []
        for _ in range(2):
            paths = asyncio.run(
                run_steps(
                    steps,
                    folder=project / "node",
                    python=sys.executable,
                    cwd=str(project),
                    env=dict(os.environ),
                    emit=messages.append,
                )
            )
        there = sorted(path.name for path in Path(paths[0]).glob("*.dist-info"))
        seen = (project / "seen").read_text().split()
        return there, seen, (project / "count").read_text(), messages

    return run_twice


@pytest.mark.long
@pytest.mark.engine_matters
def test_steps_run_once_over_what_the_image_has(on, tmp_path):
    if on.space is None and importlib.util.find_spec("torch") is None:
        pytest.skip("there is no torch here")
    wheel = make_wheel(tmp_path, "needs_torch", "1.0", requires=("torch>=2",), value=7)
    folder = "" if on.space else str(tmp_path)
    (found,) = on.run(make_work(), (wheel.read_bytes(), folder))
    there, (value, version), counted, messages = found
    assert there == ["needs_torch-1.0.dist-info"]
    assert value == "7"
    assert version.startswith("2.")
    assert counted == "once\n"
    assert len([line for line in messages if line.startswith("step ")]) == 2
