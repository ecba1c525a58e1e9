"""Names of conformance cases, and the user's settings that apply to them."""

from __future__ import annotations

import pytest

from windlass.conformance.case_plugin import name_case
from windlass.conformance.cluster_place import render_config
from windlass.settings.reading import read_settings


@pytest.mark.parametrize(
    ("nodeid", "case"),
    [
        ("test_life.py::test_time_limit[trainjob]", "test_life::test_time_limit"),
        ("test_a.py::test_b[trainjob-two words]", "test_a::test_b[two words]"),
        ("test_a.py::test_b[two-trainjob]", "test_a::test_b[two]"),
        ("test_a.py::test_b", "test_a::test_b"),
    ],
)
def test_a_case_is_named_without_its_engine(nodeid, case):
    assert name_case(nodeid, "trainjob") == case


def test_pod_settings_of_the_user_apply_to_every_case(tmp_path):
    flags = {
        "engine": "kubernetes",
        "image": "of-a-flag",
        "nodes": 7,
        "queue": 'a "quoted" one',
        "run_as": "none",
        "tolerations": ["gpu=yes:NoSchedule", "spot"],
        "node_selector": {"zone": "é|b"},
        "labels": {"team": "x"},
        "patch": {"spec": {"hostNetwork": True, "dnsConfig": {"searches": ["a", "b"]}}},
    }
    settings = read_settings(flags=flags, environ={}, start=tmp_path)
    file = tmp_path / "config.toml"
    file.write_text(render_config(settings, {"run": "1"}))
    again = read_settings(flags={}, environ={}, start=tmp_path, user_file=file)
    for name in ("queue", "run_as", "tolerations", "node_selector", "patch"):
        assert again.value(name) == settings.value(name), name
    assert again.labels == {"team": "x", "run": "1"}
    assert (again.nodes, again.image) == (1, "")  # the cases set these themselves
