"""Node between its fork server and its lead: how it handles ranks, and which messages it sends."""

from __future__ import annotations

import subprocess
import sys

import node_scenes
import pytest


@pytest.mark.parametrize("scene", node_scenes.SCENES)
def test_node(scene, tmp_path):
    command = [sys.executable, node_scenes.__file__, scene, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_job_agent_does_not_import_compute_modules():
    code = "import sys, windlass.agent.agent_process; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "windlass.agent.node.attempt_ranks" in loaded
    only_computes = {
        "windlass.agent.link.payload_parts",
        "windlass.agent.link.rank_channel",
        "windlass.agent.node.compute_orders",
        "windlass.agent.projects",
        "windlass.wire.messages.calls",
        "windlass.wire.messages.computes",
        "windlass.wire.payloads",
    }
    assert not only_computes & set(loaded)
