"""Settings: the order of sources, the source of a value, and the messages of refused ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from windlass import names
from windlass.errors import SpecError
from windlass.settings import SETTINGS, NodeRange, Settings, read_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "src" / "deep").mkdir(parents=True)
    return tmp_path / "project"


def read(start: Path, home: Path, /, environ: dict[str, str] | None = None, **flags) -> Settings:
    return read_settings(flags=flags, environ={"HOME": str(home), **(environ or {})}, start=start)


def write_user_file(home: Path, text: str) -> Path:
    path = home / ".config" / "windlass" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def refused(start: Path, home: Path, /, **given) -> str:
    with pytest.raises(SpecError) as caught:
        read(start, home, **given)
    assert caught.value.hint
    return str(caught.value)


def test_defaults(project, home):
    settings = read(project, home)
    assert dict(settings.items()) == {
        "engine": "local",
        "framework": "",
        "nodes": 1,
        "procs": None,
        "gpus": 0,
        "pretend_gpus": False,
        "name": "",
        "env": {},
        "start": "fork",
        "preload": None,
        "python": "",
        "restarts": 0,
        "node_restarts": 3,
        "timeout_s": None,
        "grace_s": 10.0,
        "peer_wait_s": 60.0,
        "lease_s": None,
        "join_timeout_s": None,
        "image": "",
        "in_image": False,
        "context": "",
        "namespace": "",
        "cpus": "",
        "memory": "",
        "ephemeral_storage": "",
        "shm": "",
        "requests": {},
        "gpu_type": "",
        "gpu_label": "nvidia.com/gpu.product",
        "gpu_resource": "nvidia.com/gpu",
        "node_selector": {},
        "tolerations": (),
        "spread": "soft",
        "pack": "",
        "priority_class": "",
        "queue": "",
        "runtime": "",
        "service_account": "",
        "run_as": 1000,
        "pull_secrets": (),
        "secrets": (),
        "volumes": (),
        "allow_host_path": False,
        "mesh_name": "",
        "open_mesh": False,
        "labels": {},
        "annotations": {},
        "ttl_s": 86400.0,
        "patch": None,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "",
        "home": str(home / ".local/state/windlass"),
    }
    assert {settings.origin(name) for name, _ in settings.items()} == {"default"}


def test_source_of_highest_priority_wins_and_is_named(project, home):
    user_file = write_user_file(home, "nodes = 2\nprocs = 2\nrestarts = 2\nname = 'user'\n")
    (project / "windlass.toml").write_text("nodes = 3\nprocs = 3\nrestarts = 3\n")
    settings = read(
        project / "src" / "deep",
        home,
        environ={"WINDLASS_NODES": "4", "WINDLASS_PROCS": "4"},
        nodes=5,
    )
    assert (settings.nodes, settings.origin("nodes")) == (5, "flag --nodes")
    assert (settings["procs"], settings.origin("procs")) == (4, "environment WINDLASS_PROCS")
    assert settings.value("restarts") == 3
    assert settings.origin("restarts") == str(project / "windlass.toml")
    assert (settings.name, settings.origin("name")) == ("user", str(user_file))
    assert settings.origin("engine") == "default"


def test_none_flags_and_empty_variables_count_as_not_given(project, home):
    settings = read(project, home, environ={"WINDLASS_PROCS": ""}, nodes=None)
    assert (settings.origin("nodes"), settings.origin("procs")) == ("default", "default")


def test_foreign_variables_are_ignored(project, home):
    assert read(project, home, environ={"WINDLASS_ENV": "x", "WINDLASS_RANK": "1"}).env == {}


def test_only_the_nearest_project_file_is_read(project, home):
    (project / "windlass.toml").write_text("nodes = 3\nprocs = 3\n")
    (project / "src" / "pyproject.toml").write_text("[tool.windlass]\nnodes = 2\n")
    settings = read(project / "src" / "deep", home)
    assert (settings.nodes, settings.procs) == (2, None)
    assert settings.origin("nodes") == str(project / "src" / "pyproject.toml")


def test_pyproject_without_our_table_is_skipped(project, home):
    (project / "windlass.toml").write_text("nodes = 3\n")
    (project / "src" / "pyproject.toml").write_text("[project]\nname = 'windlass-user'\n")
    assert read(project / "src", home).nodes == 3


def test_windlass_toml_wins_over_pyproject_in_one_folder(project, home):
    (project / "windlass.toml").write_text("nodes = 3\n")
    (project / "pyproject.toml").write_text("[tool.windlass]\nnodes = 2\n")
    assert read(project, home).nodes == 3


def test_table_of_variables_is_merged_over_its_sources(project, home):
    user_file = write_user_file(home, "[env]\nA = 'user'\nB = 'user'\nC = 'user'\n")
    (project / "pyproject.toml").write_text("[tool.windlass.env]\nB = 'project'\nN = 4\n")
    settings = read(project, home, env=["C=flag", "D=x=y"])
    assert settings.env == {"A": "user", "B": "project", "N": "4", "C": "flag", "D": "x=y"}
    origins = ["flag --env", str(project / "pyproject.toml"), str(user_file)]
    assert settings.origin("env") == ", ".join(origins)


def test_defaults_are_not_shared(project, home):
    assert read(project, home).env is not read(project, home).env


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WINDLASS_HOME": "/data/w"}, "/data/w"),
        ({"XDG_STATE_HOME": "/state"}, "/state/windlass"),
        ({"XDG_STATE_HOME": "relative"}, "{home}/.local/state/windlass"),
        ({"XDG_STATE_HOME": ""}, "{home}/.local/state/windlass"),
        ({"WINDLASS_HOME": "/data/w", "XDG_STATE_HOME": "/state"}, "/data/w"),
        ({"WINDLASS_HOME": "~/w"}, "{home}/w"),
        ({"WINDLASS_HOME": "~"}, "{home}"),
        ({"WINDLASS_HOME": "here"}, "{project}/here"),
    ],
)
def test_home(project, home, environ, expected):
    found = read(project, home, environ=environ).home
    assert found == expected.format(home=home, project=project)


def test_path_in_a_file_is_relative_to_that_file(project, home):
    (project / "windlass.toml").write_text("home = '.jobs'\n")
    assert read(project / "src" / "deep", home).home == str(project / ".jobs")


def test_pod_settings_may_be_in_a_file(project, home):
    (project / "windlass.toml").write_text(
        "nodes = '2:4'\nmemory = '8Gi'\ncpus = 2\nin_image = true\nvolumes = ['a,b:/a']\n"
        "patch = 'pod.yaml'\n[labels]\nteam = 'x'\n[requests]\ncpus = 1\n"
    )
    settings = read(project / "src", home, labels=["shift=night"])
    assert settings.nodes == NodeRange(min=2, max=4)
    assert (settings.memory, settings.cpus, settings.in_image) == ("8Gi", "2", True)
    assert settings.volumes == ("a,b:/a",)
    assert settings.labels == {"team": "x", "shift": "night"}
    assert settings.requests == {"cpus": "1"}
    assert settings.patch == str(project / "pod.yaml")


def test_a_patch_in_a_file_may_be_a_table(project, home):
    (project / "windlass.toml").write_text("[patch.spec]\nhostNetwork = true\n")
    assert read(project, home).patch == {"spec": {"hostNetwork": True}}


def test_variables_of_pods(project, home):
    environ = {
        "WINDLASS_VOLUMES": "a:/a, b:/b",
        "WINDLASS_IN_IMAGE": "1",
        "WINDLASS_NODES": "1:3",
        "WINDLASS_MEMORY": "1Gi",
    }
    settings = read(project, home, environ=environ)
    assert (settings.volumes, settings.in_image) == (("a:/a", "b:/b"), True)
    assert (str(settings.nodes), settings.memory) == ("1:3", "1Gi")


def test_home_may_be_a_path(project, home):
    assert read(project, home, home=Path("/jobs")).home == "/jobs"


def test_the_user_file_may_be_elsewhere(project, home, tmp_path):
    (tmp_path / "xdg" / "windlass").mkdir(parents=True)
    (tmp_path / "xdg" / "windlass" / "config.toml").write_text("nodes = 7\n")
    assert read(project, home, environ={"XDG_CONFIG_HOME": str(tmp_path / "xdg")}).nodes == 7
    (tmp_path / "mine.toml").write_text("nodes = 8\n")
    environ = {"HOME": str(home)}
    mine = tmp_path / "mine.toml"
    assert read_settings(flags={}, environ=environ, start=project, user_file=mine).nodes == 8


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("nodes", "4", 4),
        ("nodes", 4, 4),
        ("nodes", "2:4", NodeRange(min=2, max=4)),
        ("nodes", "4:4", 4),
        ("nodes", NodeRange(min=1, max=2), NodeRange(min=1, max=2)),
        ("procs", "none", None),
        ("run_as", "none", None),
        ("run_as", "0", 0),
        ("ttl_s", "none", None),
        ("ttl_s", "2d", 172800.0),
        ("memory", "512Gi", "512Gi"),
        ("cpus", 4, "4"),
        ("cpus", 0.5, "0.5"),
        ("cpus", " 500m ", "500m"),
        ("in_image", True, True),
        ("in_image", "no", False),
        ("volumes", ["a:/a", "b:/b,c:/c"], ("a:/a", "b:/b", "c:/c")),
        ("volumes", "none", ()),
        ("patch", {"spec": {"a": 1}}, {"spec": {"a": 1}}),
        ("patch", "spec: {a: 1}", "spec: {a: 1}"),
        ("timeout_s", "none", None),
        ("timeout_s", "1h30m", 5400.0),
        ("grace_s", 0, 0.0),
        ("preload", "torch, numpy", ("torch", "numpy")),
        ("preload", ["torch"], ("torch",)),
        ("preload", (), ()),
        ("preload", "none", ()),
        ("start", "spawn", "spawn"),
        ("env", {"A": "1", "B": 2}, {"A": "1", "B": "2"}),
    ],
)
def test_values_of_flags(project, home, name, raw, expected):
    assert read(project, home, **{name: raw})[name] == expected


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("nodes", 0, "--nodes must be at least 1, not 0"),
        ("nodes", "-2", "--nodes must be at least 1"),
        ("nodes", "two", "--nodes must be a whole number, not 'two'"),
        ("nodes", True, "--nodes must be a whole number"),
        ("nodes", 1.5, "--nodes must be a whole number"),
        ("nodes", "none", "--nodes must be a whole number"),
        ("nodes", "3:2", "--nodes must be MIN:MAX with 1 <= MIN <= MAX, not '3:2'"),
        ("nodes", "0:2", "--nodes must be MIN:MAX"),
        ("nodes", "1:2:3", "--nodes must be a whole number"),
        ("memory", True, "--memory must be a number, or text like 500m or 512Gi, not True"),
        ("memory", [1], "--memory must be a number, or text"),
        ("in_image", "maybe", "--in-image must be true or false, not 'maybe'"),
        ("volumes", [1], "--volume must be a list of texts"),
        ("labels", ["x"], "--label must be given as NAME=VALUE"),
        ("spread", "wide", "--spread must be one of soft, hard, none"),
        ("run_as", -1, "--run-as must be at least 0"),
        ("patch", 3, "--patch must be a table, YAML or the path of a YAML file"),
        ("rdzv_backend", "static", "--rdzv-backend must be one of c10d, etcd, etcd-v2"),
        ("procs", 0, "--procs must be at least 1"),
        ("restarts", -1, "--restarts must be at least 0"),
        ("timeout_s", 0, "--timeout must be more than 0"),
        ("timeout_s", "5 parsecs", "--timeout must be a duration like 90, 90s, 5m"),
        ("timeout_s", [5], "--timeout must be a duration"),
        ("join_timeout_s", -1, "--join-timeout must be a duration"),
        ("start", "threads", "--start must be one of fork, spawn, not 'threads'"),
        ("engine", 3, "--engine must be text"),
        ("preload", [1], "--preload must be a list of texts"),
        ("env", ["A"], "--env must be given as NAME=VALUE"),
        ("env", ["=1"], "--env must be given as NAME=VALUE"),
        ("env", "A=1", "--env must be a table"),
        ("env", {"A": True}, "put A in quotes"),
        ("nods", 1, "unknown setting 'nods'\n  hint: did you mean 'nodes'?"),
    ],
)
def test_refused_flags(project, home, name, raw, message):
    assert message in refused(project, home, **{name: raw})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nods = 2", "unknown setting 'nods' in {file}\n  hint: did you mean 'nodes'?"),
        ("zzz = 2", "unknown setting 'zzz' in {file}\n  hint: available: engine, nodes"),
        ("nodes = '2'", "nodes in {file} must be a whole number, not '2'"),
        ("nodes = 0", "nodes in {file} must be at least 1"),
        ("nodes = '2:1'", "nodes in {file} must be MIN:MAX"),
        ("in_image = 'yes'", "in_image in {file} must be true or false"),
        ("volumes = 'a:/a'", "volumes in {file} must be a list of texts"),
        ("cpus = [1]", "cpus in {file} must be a number"),
        ("preload = 'torch'", "preload in {file} must be a list of texts"),
        ("env = 'A=1'", "env in {file} must be a table"),
        ("env = ['A=1']", "env in {file} must be a table"),
        ("timeout_s = true", "timeout_s in {file} must be a duration"),
        ("nodes = ", "{file} is not valid TOML"),
    ],
)
def test_refused_in_a_file(project, home, text, message):
    (project / "windlass.toml").write_text(text)
    assert message.format(file=project / "windlass.toml") in refused(project / "src", home)


def test_mistake_in_a_file_is_reported_even_if_a_flag_wins(project, home):
    (project / "windlass.toml").write_text("nodes = 0")
    assert "nodes in" in refused(project, home, nodes=2)


def test_refused_in_the_environment(project, home):
    assert "WINDLASS_NODES must be a whole number, not 'x'" in refused(
        project, home, environ={"WINDLASS_NODES": "x"}
    )


def test_our_part_of_pyproject_must_be_a_table(project, home):
    (project / "pyproject.toml").write_text("[tool]\nwindlass = 1\n")
    assert "tool.windlass" in refused(project, home)


def test_a_file_that_is_not_text_is_refused(project, home):
    (project / "windlass.toml").write_bytes(b"\xff\xfe\x00")
    assert "is not valid TOML" in refused(project, home)


def test_a_file_that_cannot_be_read_is_refused(project, home):
    (project / "windlass.toml").symlink_to("windlass.toml")
    assert f"cannot read {project / 'windlass.toml'}: " in refused(project / "src", home)


def test_unknown_names_are_refused_on_reading_too(project, home):
    settings = read(project, home)
    for look in (settings.value, settings.origin, settings.__getitem__):
        with pytest.raises(SpecError, match="did you mean 'nodes'"):
            look("node")
    with pytest.raises(AttributeError):
        settings.nodes = 3  # type: ignore[misc]


def test_the_table_is_complete():
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.help for setting in SETTINGS)
    by_name = {setting.name: setting for setting in SETTINGS}
    assert by_name["timeout_s"].flag == "--timeout"
    assert by_name["join_timeout_s"].flag == "--join-timeout"
    assert by_name["home"].variable == names.HOME
    assert by_name["env"].variable == ""
    assert by_name["volumes"].flag == "--volume"
    assert len({setting.flag for setting in SETTINGS}) == len(SETTINGS)


def test_import_is_cheap():
    heavy = "{'tomllib', 'tomli', 'difflib', 'pathlib', 'typing', 'torch'}"
    code = f"import sys, windlass.settings; print(*sorted({heavy} & set(sys.modules) - before))"
    command = [
        sys.executable,
        "-c",
        f"import dataclasses, sys, windlass; before = set(sys.modules); {code}",
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"
