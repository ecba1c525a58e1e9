"""Hints shown in Python, which name keywords instead of flags."""

from __future__ import annotations

import pytest

from windlass.client.compute.nodes.compute_keywords import speak_python
from windlass.kube.diagnosis.pod_scheduling import diagnose


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ask for less with --gpus, --cpus or --nodes",
            "ask for less with gpus=, cpus= or workers=",
        ),
        ("correct --volume or --secret", "correct volumes= or secrets="),
        ("change --spread soft", 'change spread="soft"'),
        ("change --node-selector and --toleration", "change node_selector= and tolerations="),
        (
            "it had no nodes after 9 s (--join-timeout)",
            "it had no nodes after 9 s (launch_timeout)",
        ),
        ("kubectl delete pod p --grace-period=0 --force", None),
        ("`windlass doctor -e kubernetes` shows what is free", None),
    ],
)
def test_flags_are_keywords(text, expected):
    assert speak_python(text) == (expected or text)


def test_hint_of_a_compute_that_does_not_fit():
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    sentence = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available"
    hint = speak_python(diagnose(pod, sentence).hint)
    assert "request less with gpus= or workers=" in hint
    assert "--" not in hint
