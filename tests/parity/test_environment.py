"""The variables of a rank: all variables of the shell and of torchrun, and Windlass's with its own prefix."""

from __future__ import annotations

import pytest
from parity.test_start import launch_with_torch

TORCHRUN = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
]
# set by both, with different values, each with its reason
OWN_VALUES = {
    "MASTER_ADDR": "an address on one side, a host's name on the other",
    "MASTER_PORT": "any free port",
    "TORCHELASTIC_RUN_ID": "the job's id",
    "TORCHELASTIC_ERROR_FILE": "in the job's folder",
}
# set by Windlass only, each with its reason
OURS_ONLY = {
    "GLOO_SOCKET_IFNAME": "nodes of one machine meet on its loopback, whatever its name resolves to",
}
# the launches themselves differ in these
_PLACES = ("WINDLASS_", "XDG_CONFIG_HOME")


@pytest.fixture(scope="module", params=[0, 1])
def sides(request, launch):
    """Return the environments of one rank under torchrun and under Windlass."""
    rank = request.param
    return [
        launch_with_torch(launch, side).seen(f"start-{rank}")["environment"]
        for side in ("python", "windlass")
    ]


@pytest.mark.parametrize("name", TORCHRUN)
def test_variable_of_torchrun(sides, name):
    torchrun, windlass = sides
    assert name in torchrun
    assert windlass.get(name) == torchrun[name]


@pytest.mark.parametrize("name", OWN_VALUES)
def test_variable_of_torchrun_with_another_value(sides, name):
    assert all(side[name] for side in sides), OWN_VALUES[name]


def test_no_variable_that_torchrun_sets_is_missing(sides):
    torchrun, windlass = sides
    assert sorted(set(torchrun) - set(windlass)) == []


def test_our_variables_have_our_prefix(sides):
    torchrun, windlass = sides
    more = {name for name in set(windlass) - set(torchrun) if not name.startswith("WINDLASS_")}
    assert more - set(OURS_ONLY) == set()


def test_no_variable_of_the_shell_is_changed(launch):
    env = {
        "MINE": "a=b $HOME",
        "EMPTY": "",
        "PYTHONPATH": "lib",
        "OMP_NUM_THREADS": "3",
        "UMLAUT": "ü€😀",
    }
    python, windlass = (
        launch(side, "start.py", env=env).seen("start-0")["environment"]
        for side in ("python", "windlass")
    )
    places = {name for name in python if name.startswith(_PLACES)}
    assert {name: windlass.get(name) for name in python if name not in places} == {
        name: value for name, value in python.items() if name not in places
    }


def test_one_rank_has_the_variables_of_a_world_of_one(launch):
    """The variables match `torchrun --nproc-per-node 1`, but no store is announced.

    A script may start its own processes.
    """
    env = launch("windlass", "start.py").seen("start-0")["environment"]
    assert {
        name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    } == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    assert "OMP_NUM_THREADS" not in env  # torchrun sets it only for more than one process
