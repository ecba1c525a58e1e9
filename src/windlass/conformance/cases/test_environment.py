"""Environment of a rank: torchrun's variables, the user's variables, its own __main__."""

from __future__ import annotations

from pathlib import Path

import pytest
import rank_work as work

TORCHRUN = [
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
]  # fmt: skip


@pytest.mark.engine_matters
def test_everything_torchrun_sets(on):
    found = on.run(work.environment, (TORCHRUN,), nodes=2, procs=2, restarts=3)
    for rank, env in enumerate(found):
        node, local = divmod(rank, 2)
        assert env == {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "4",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
        }


@pytest.mark.engine_matters
def test_master_and_run_id_are_shared(on):
    names = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"]
    found = on.run(work.environment, (names,), nodes=2, procs=2)
    assert all(env == found[0] for env in found)
    assert all(found[0].values())
    files = on.run(work.environment, (["TORCHELASTIC_ERROR_FILE", "WINDLASS_NODE_NAME"],), nodes=2)
    assert files[0] != files[1]


def test_threads_are_decided_as_torchrun_does(on, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    assert on.run(work.environment, (names,)) == [dict.fromkeys(names)]
    assert on.run(work.environment, (names,), procs=2)[1]["OMP_NUM_THREADS"] == "1"
    assert (
        on.run(work.environment, (names,), procs=2, env={"OMP_NUM_THREADS": "3"})[1][names[0]]
        == "3"
    )


@pytest.mark.local_only("pods have the image's environment and what --env sets, not the client's")
def test_threads_of_the_client_are_the_ranks(on, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    [_, found] = on.run(work.environment, (["OMP_NUM_THREADS"],), procs=2)
    assert found["OMP_NUM_THREADS"] == "2"


def test_env_of_any_content(on):
    env = {
        "A": "two words",
        "B": "$HOME `x` \"q\" 'q'",
        "C": "line\nline",
        "D": "é😀",
        "E": "",
        "F": "a=b",
    }
    assert on.run(work.environment, (list(env),), env=env) == [env]


def test_user_code_runs_in_the_main_module_and_thread(on):
    [found] = on.run(work.where_am_i)
    cwd = str(on.path_in_rank(Path.cwd()))
    assert found == {"thread": True, "main": "__main__", "cwd": cwd, "stdin": ""}


@pytest.mark.engine_matters
def test_a_script_runs_as_under_python(on, tmp_path, monkeypatch):
    (tmp_path / "windlass.toml").touch()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "beside.py").write_text("VALUE = 'imported from beside'\n")
    script = tmp_path / "pkg" / "a script.py"
    script.write_text(
        "import sys, beside\n"
        "class Here: pass\n"
        "if __name__ == '__main__':\n"
        "    import pickle\n"
        "    assert pickle.loads(pickle.dumps(Here())).__class__ is Here\n"
        "    print(sys.argv, beside.VALUE, sys.modules['__main__'].__file__ == __file__, __file__)\n"
    )
    monkeypatch.chdir(tmp_path)
    args = ["--x", "a b", "$HOME", "q'\"", "l\nm", "", "é", "--", "*"]
    job = on.submit("pkg/a script.py", args)
    job.wait(90)
    text = "\n".join(line.text for line in job.logs())
    where = on.path_in_rank(script, project=tmp_path)
    assert text == f"{['pkg/a script.py', *args]} imported from beside True {where}"


def test_spawned_ranks_find_the_same(on):
    assert on.run(work.environment, (["RANK", "WORLD_SIZE"],), procs=2, start="spawn") == [
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "2"},
    ]
    [found] = on.run(work.where_am_i, start="spawn")
    assert found["main"] == "__main__"
