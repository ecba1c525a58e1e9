"""Other ways to use Ray than `.distribute`: decorators, a deployed name, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from warm_computes import PROJECT

import windlass as kt

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[default]'")
pytestmark = [pytest.mark.local_only, pytest.mark.long, pytest.mark.timeout(900)]


def test_decorated_and_by_its_deployed_name(on, project):
    project.write(
        "{stem}.py",
        """
        import windlass as kt

        @kt.compute(name="t-ray-decorated", cpus="1", pretend_gpus=True, inactivity_ttl=240)
        @kt.distribute(framework="ray", workers=1, worker_node_options={"gpus": 3})
        def count_gpus():
            import os, ray
            ray.init()
            return ray.cluster_resources()["GPU"], os.environ["RAY_ADDRESS"]
        """,
    )
    count_gpus = project.load("{stem}").count_gpus
    deployed = count_gpus.deploy()
    try:
        first = count_gpus()
        assert first[0] == 3
        assert kt.get("count_gpus")() == first  # the deployed cluster is used
    finally:
        deployed.teardown()


def test_command_line(on):
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "windlass.cli.main", "run", "ray_tasks.py::look", "--json"),
            *("--framework", "ray", "--nodes", "2", "--cpus", "1", "--gpus", "2", "--pretend-gpus"),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    assert '"127.0.0.3": 2' in json.dumps(json.loads(ran.stdout))
