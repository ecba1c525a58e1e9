"""Secrets: their sources, refused ones, and values that are never shown."""

from __future__ import annotations

import pickle
import re

import pytest

import windlass as wl
from windlass.client.compute.resources.secret import read_dotenv, resolve_secrets
from windlass.spec.storage import SecretFiles, SecretVariable, SecretVariables

VALUE = "s3cret-value"


def resolve(*secrets, environ=None, has_pods=True):
    return resolve_secrets(secrets, environ=environ or {}, has_pods=has_pods)


@pytest.mark.parametrize(
    ("secret", "record"),
    [
        (wl.Secret(name="db"), SecretVariables(secret="db")),
        (wl.Secret("db"), SecretVariables(secret="db")),
        (
            wl.Secret(name="db", key="pw", env="DB_PW"),
            SecretVariable(secret="db", key="pw", variable="DB_PW"),
        ),
        (wl.Secret(name="db", key="PW"), SecretVariable(secret="db", key="PW", variable="PW")),
        (wl.Secret(name="db", mount_path="/creds/"), SecretFiles(secret="db", path="/creds")),
        # a keyword means a Secret of the cluster
        (wl.Secret(name="hf"), SecretVariables(secret="hf")),
        ("db", SecretVariables(secret="db")),
        ("A=db:pw", SecretVariable(secret="db", key="pw", variable="A")),
        ("db:/creds", SecretFiles(secret="db", path="/creds")),
    ],
)
def test_secrets_of_the_cluster_are_references(secret, record):
    found = resolve(secret)
    assert found.records == (record,)
    assert found.hidden == {}


def test_variables_of_this_process():
    secret = wl.Secret.from_env(["A", "B"], name="mine")
    found = resolve(secret, environ={"A": VALUE, "B": "b", "C": "c"}, has_pods=False)
    assert found.hidden == {"A": VALUE, "B": "b"}
    assert found.records == ()
    assert repr(secret) == "Secret.from_env(['A', 'B'], name='mine')"
    assert resolve(wl.Secret.from_env("A"), environ={"A": ""}).hidden == {"A": ""}


def test_a_file_of_variables(tmp_path):
    (tmp_path / ".env").write_text(f"# mine\nexport A={VALUE}  # why\nB='b c'\nC=\"d\\ne\"\n\n")
    found = resolve(wl.Secret.from_file(tmp_path / ".env"))
    assert found.hidden == {"A": VALUE, "B": "b c", "C": "d\ne"}


def test_a_file_as_one_variable(tmp_path):
    (tmp_path / "key").write_text(f"{VALUE}\nmore\n")
    assert resolve(wl.Secret.from_file(tmp_path / "key", env="KEY")).hidden == {
        "KEY": f"{VALUE}\nmore"
    }


def test_nothing_shows_a_value(tmp_path):
    (tmp_path / "token").write_text(VALUE)
    (tmp_path / ".env").write_text(f"B={VALUE}\n")
    environ = {"A": VALUE, "HF_TOKEN_PATH": str(tmp_path / "token")}
    secrets = [wl.Secret.from_env("A"), wl.Secret.from_file(tmp_path / ".env"), wl.Secret("hf")]
    found = resolve(*secrets, environ=environ)
    assert set(found.hidden.values()) == {VALUE}
    for text in (repr(secrets), str(secrets), repr(found), str(found), repr(pickle.dumps(secrets))):
        assert VALUE not in text
    assert pickle.loads(pickle.dumps(secrets)) == secrets
    assert len({*secrets, *secrets}) == 3


# -- built in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_hugging_face_by_variable(variable):
    assert resolve("hf", environ={variable: VALUE}).hidden == {"HF_TOKEN": VALUE}


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({}, ".cache/huggingface/token"),
        ({"HF_HOME": "hub"}, "hub/token"),
        ({"HF_TOKEN_PATH": "t"}, "t"),
        ({"XDG_CACHE_HOME": "cache"}, "cache/huggingface/token"),
    ],
)
def test_hugging_face_by_file(tmp_path, environ, file):
    environ = {"HOME": str(tmp_path), **{name: str(tmp_path / at) for name, at in environ.items()}}
    with pytest.raises(wl.SpecError, match=re.escape(str(tmp_path / file))) as caught:
        resolve("hf", environ=environ)
    assert "HF_TOKEN, HUGGING_FACE_HUB_TOKEN" in caught.value.message
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"{VALUE}\n")
    assert resolve(wl.Secret(provider="hf"), environ=environ).hidden == {"HF_TOKEN": VALUE}


def test_weights_and_biases(tmp_path):
    environ = {"HOME": str(tmp_path)}
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine example.org login a password b\ndefault login c password d\n")
    with pytest.raises(wl.SpecError, match="found in WANDB_API_KEY or"):
        resolve("wandb", environ=environ)
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {VALUE}\n")
    assert resolve("wandb", environ=environ).hidden == {"WANDB_API_KEY": VALUE}
    own = {**environ, "WANDB_BASE_URL": "https://wandb.example.org:8080"}
    with pytest.raises(wl.SpecError, match="no Weights & Biases credentials found"):
        resolve("wandb", environ=own)
    assert resolve("wandb", environ={**own, "WANDB_API_KEY": "k"}).hidden == {
        "WANDB_API_KEY": "k",
        "WANDB_BASE_URL": "https://wandb.example.org:8080",
    }


def test_aws(tmp_path):
    environ = {"HOME": str(tmp_path), "AWS_REGION": "eu-west-1"}
    with pytest.raises(wl.SpecError, match=r"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or .*\.aws"):
        resolve("aws", environ=environ)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = id\naws_secret_access_key = key%s\n"
        "[work]\naws_access_key_id = id2\naws_secret_access_key = key2\naws_session_token = t2\n"
    )
    assert resolve("aws", environ=environ).hidden == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key%s",
        "AWS_REGION": "eu-west-1",
    }
    work = resolve("aws", environ={**environ, "AWS_PROFILE": "work"}).hidden
    assert work["AWS_SESSION_TOKEN"] == "t2"
    # Half a pair of variables and the token of another pair are not combined with the file's values.
    half = {**environ, "AWS_ACCESS_KEY_ID": "other", "AWS_SESSION_TOKEN": "other"}
    found = resolve("aws", environ=half).hidden
    assert (found["AWS_ACCESS_KEY_ID"], "AWS_SESSION_TOKEN" in found) == ("id", False)
    both = {**half, "AWS_SECRET_ACCESS_KEY": "k"}
    assert resolve("aws", environ=both).hidden == {
        "AWS_ACCESS_KEY_ID": "other",
        "AWS_SECRET_ACCESS_KEY": "k",
        "AWS_SESSION_TOKEN": "other",
        "AWS_REGION": "eu-west-1",
    }


# -- refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wl.Secret(), "exactly one name or provider"),
        (lambda: wl.Secret("a", name="b"), "exactly one name or provider"),
        (lambda: wl.Secret(provider="huggingfce"), "did you mean hf?"),
        (lambda: wl.Secret(provider="wndb"), "did you mean wandb?"),
        (lambda: wl.Secret("hf", key="k"), "does not accept key"),
        (lambda: wl.Secret(name="A B"), "'A B' is not the name of a Secret"),
        (lambda: wl.Secret(name="db", env="A"), "env='A' needs a key of the Secret db"),
        (lambda: wl.Secret(name="db", key="a.b"), 'env="VARIABLE"'),
        (lambda: wl.Secret(name="db", key="k", env="RANK"), "'RANK' cannot be set"),
        (lambda: wl.Secret(name="db", key="k", mount_path="/x"), "both files and variables"),
        (lambda: wl.Secret(name="db", mount_path="x"), "not an absolute path"),
        (lambda: wl.Secret(name="db", mount_path="/etc"), "is reserved"),
        (lambda: wl.Secret.from_env([]), "at least one variable"),
        (lambda: wl.Secret.from_env([3]), "invalid environment variable name 3"),
        (lambda: wl.Secret.from_file("x", env="A-B"), "invalid environment variable name"),
        (lambda: wl.Secret.from_file("x", mount_path="/x"), "kubectl create secret generic"),
        (lambda: wl.Secret.read(3), "a secret must be a string or a Secret, not int"),
    ],
)
def test_invalid_secrets_are_refused(make, message):
    with pytest.raises(wl.SpecError, match=re.escape(message)):
        make()


def test_value_in_place_of_a_name_is_not_shown():
    with pytest.raises(wl.SpecError) as caught:
        wl.Secret.from_env(["sk-1234567890"])
    assert "1234567890" not in str(caught.value)


def test_missing_variables_are_reported():
    with pytest.raises(wl.SpecError, match="A, B are not set here") as caught:
        resolve(wl.Secret.from_env(["A", "B"]))
    assert "export A=" in caught.value.hint


def test_files_without_a_secret(tmp_path):
    with pytest.raises(wl.SpecError, match="No such file"):
        resolve(wl.Secret.from_file(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    with pytest.raises(wl.SpecError, match="is not text"):
        resolve(wl.Secret.from_file(tmp_path / "binary", env="A"))
    (tmp_path / "large").write_bytes(b"x" * 300_000)
    with pytest.raises(wl.SpecError, match="too large for a secret"):
        resolve(wl.Secret.from_file(tmp_path / "large", env="A"))


@pytest.mark.parametrize("text", [VALUE, f"A='{VALUE}", f'A="{VALUE}" x', ""])
def test_malformed_lines_are_not_shown(text):
    with pytest.raises(wl.SpecError) as caught:
        read_dotenv(text, ".env")
    assert VALUE not in str(caught.value)


def test_two_secrets_for_one_variable():
    with pytest.raises(wl.SpecError, match=r"A is set by Secret.from_env\(\['A'\]\) and by Secret"):
        resolve(wl.Secret.from_env("A"), "A=db:k", environ={"A": VALUE})


def test_cluster_secret_without_a_cluster():
    with pytest.raises(wl.SpecError, match="is an object of a cluster") as caught:
        resolve("db", has_pods=False)
    assert "Secret.from_env" in caught.value.hint
