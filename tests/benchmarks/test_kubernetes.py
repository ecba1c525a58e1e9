"""Evaluation of measurements by the benchmark on Kubernetes."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture
def bench(load) -> ModuleType:
    return load("kubernetes")


def test_timestamps_are_found_in_any_output(load):
    text = '[0/0] BENCH {"rank": 0, "reduced": 1.5}\nnoise BENCH\n[rank1]:BENCH {"rank": 1, "reduced": 2.0}\n'

    found = load("kubernetes_place").read_stamps(text)

    assert [stamp["reduced"] for stamp in found] == [1.5, 2.0]


def test_a_start_takes_as_long_as_its_slowest_rank(load):
    contestants = load("kubernetes_contestants")
    stamps = [{"rank": 1, "reduced": 12.5}, {"rank": 0, "reduced": 13.0}]

    assert contestants.make_sample("x", 10.0, stamps, num=2).seconds == 3.0


@pytest.mark.parametrize("ranks", [[0], [0, 0], [0, 1, 1], []])
def test_missing_or_duplicate_rank_invalidates_the_measurement(load, ranks):
    stamps = [{"rank": rank, "reduced": 1.0} for rank in ranks]

    with pytest.raises(SystemExit, match=r"expected ranks 0\.\.1"):
        load("kubernetes_contestants").make_sample("x", 0.0, stamps, num=2)


def test_ratios_are_of_medians(bench):
    row = bench.Row(key="floor", ours_s=[3.0, 2.0, 9.0], peer_s=[2.0, 2.0, 3.0])

    assert row.ratio == 1.5
    assert row.pairs == [1.5, 1.0, 3.0]
    assert row.is_met is False


def test_table_shows_met_missed_and_absent_targets(bench):
    rows = [
        bench.Row(key="statefulset", ours_s=[2.0], peer_s=[4.0]),
        bench.Row(key="trainjob", ours_s=[2.0], peer_s=None),
        bench.Row(key="floor", ours_s=[2.0], peer_s=[1.0]),
        bench.Row(key="restart", ours_s=[0.5, 0.7, 0.6], peer_s=None),
    ]

    table = bench.render_table(rows).splitlines()[2:]

    assert "0.50x" in table[0]
    assert table[0].endswith("<= 0.50x: met |")
    assert "not installed" in table[1]
    assert table[2].endswith("<= 1.25x: missed |")
    assert "0.60 s" in table[3]
    assert table[3].endswith("<= 1 s: met |")


def test_each_engine_is_compared_with_its_own_operator(bench, load):
    sample = load("kubernetes_contestants").Sample
    seconds = {"windlass": 3.0, "windlass -e trainjob": 4.0, "trainjob": 5.0, "pytorchjob": 40.0}
    samples = {name: [sample(seconds=took_s, began_s=0.0)] for name, took_s in seconds.items()}

    rows = bench.make_rows(["trainjob", "trainjob-engine", "pytorchjob-engine"], samples)

    assert [row.ratio for row in rows] == [0.6, 0.8, None]
    assert [row.is_met for row in rows] == [True, True, None]
    assert "| not installed | 40.00 s |" in bench.render_table(rows[2:])


def test_every_engine_keeps_its_pods_on_separate_nodes(load):
    manifests = load("kubernetes_manifests")
    floor = manifests.make_floor("floor", image="i:1", nodes=2)
    train = manifests.make_train_job("train", image="i:1", nodes=2, procs=1, script="pass")
    patch = train["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pytorch = manifests.make_pytorch_job("pytorch", image="i:1", nodes=2, procs=1, script="pass")

    for template in (
        floor["spec"]["template"],
        patch["replicatedJobs"][0]["template"]["spec"]["template"],
        *(spec["template"] for spec in pytorch["spec"]["pytorchReplicaSpecs"].values()),
    ):
        apart = template["spec"]["affinity"]["podAntiAffinity"]
        (term,) = apart["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["labelSelector"]["matchLabels"] == template["metadata"]["labels"]


def test_a_profile_is_in_the_order_of_the_medians(load):
    found = [{"late": 0.3, "early": 0.1, "once": 0.0}, {"late": 0.5, "early": 0.2}]

    cpu = [{"late": 0.01}, {"late": 0.03}]

    lines = load("kubernetes_profile").render_moments(found, cpu).splitlines()[2:]

    assert lines == ["| 150 ms | +150 |  | early |", "| 400 ms | +250 | 20 | late |"]
