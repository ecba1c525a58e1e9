"""Volumes and secrets: every valid form, and the message for every mistake."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import SpecError
from windlass.spec.storage import (
    Claim,
    EmptyDir,
    HostPath,
    NewClaim,
    SecretFiles,
    SecretVariable,
    SecretVariables,
    read_secret,
    read_volume,
)


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("data-claim:/data", Claim(claim="data-claim", path="/data")),
        ("data-claim:/data/", Claim(claim="data-claim", path="/data")),
        ("data-claim:/data:ro", Claim(claim="data-claim", path="/data", read_only=True)),
        ("data-claim:/data:rw", Claim(claim="data-claim", path="/data")),
        ("new:10Gi:/data", NewClaim(size="10Gi", path="/data")),
        ("new:10Gi:/data:RWX", NewClaim(size="10Gi", path="/data", access="RWX")),
        ("new:10Gi:/data:fast", NewClaim(size="10Gi", path="/data", storage_class="fast")),
        (
            "new:10Gi:/data:rwo:fast",
            NewClaim(size="10Gi", path="/data", access="RWO", storage_class="fast"),
        ),
        ("emptydir:/scratch", EmptyDir(path="/scratch")),
        ("emptyDir:5Gi:/scratch", EmptyDir(path="/scratch", size="5Gi")),
    ],
)
def test_volumes(text, volume):
    assert read_volume(text) == volume


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data", "it needs a path in the pod"),
        ("data:rel", "'rel' is not an absolute path"),
        ("Data:/data", "'Data' is not the name of a claim"),
        (":/data", "'' is not the name of a claim"),
        ("data:/data:r", "'r' is neither ro nor rw"),
        ("data:/data:ro:x", "is neither ro nor rw"),
        ("data:/", "/ is reserved"),
        ("data:/windlass/job", "/windlass/job is reserved"),
        ("data:/dev/shm", "/dev/shm is reserved"),
        ("new:/data", "it needs a size and a path"),
        ("new:big:/data", "the size in --volume new:big:/data must be an amount"),
        ("new:10Gi:/data:RWX:fast:x", "'fast:x' is neither an access mode nor a storage class"),
        ("emptydir", "it needs a path"),
        ("emptydir:5:/x", "less than 1 MiB"),
        ("hostpath:/a:/b", "is a folder of the machine"),
        ("/a:/b", "is a folder of the machine"),
    ],
)
def test_refused_volumes(text, says):
    with pytest.raises(SpecError) as caught:
        read_volume(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_folder_of_the_host_must_be_allowed():
    wanted = HostPath(source="/mnt/a", path="/a", read_only=True)
    assert read_volume("hostpath:/mnt/a:/a:ro", allow_host_path=True) == wanted
    assert read_volume("/mnt/a:/a:ro", allow_host_path=True) == wanted
    with pytest.raises(SpecError, match="it needs the folder's path on the host"):
        read_volume("hostpath:/a", allow_host_path=True)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("hf", SecretVariables(secret="hf")),
        ("HF_TOKEN=hf:token", SecretVariable(secret="hf", key="token", variable="HF_TOKEN")),
        ("HF_TOKEN=hf", SecretVariable(secret="hf", key="HF_TOKEN", variable="HF_TOKEN")),
        ("hf:/keys", SecretFiles(secret="hf", path="/keys")),
    ],
)
def test_secrets(text, secret):
    assert read_secret(text) == secret


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not the name of a Secret"),
        ("HF", "'HF' is not the name of a Secret"),
        ("A-B=hf:token", "'A-B' cannot be set as a variable"),
        ("RANK=hf:token", "'RANK' cannot be set as a variable"),
        ("A=hf:a/b", "the text after : is not a key"),
        ("hf:token", "'token' is not an absolute path"),
        ("hf:/windlass/secret", "is reserved"),
    ],
)
def test_refused_secrets(text, says):
    with pytest.raises(SpecError) as caught:
        read_secret(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_value_in_place_of_a_name_is_not_shown():
    with pytest.raises(SpecError) as caught:
        read_secret("HF_TOKEN=hf_" + "S3cret" * 5)
    assert "--secret HF_TOKEN" in caught.value.message
    assert "S3cretS3cret" not in str(caught.value)


@given(st.text())
def test_any_text_is_a_volume_or_a_clear_error(text):
    with contextlib.suppress(SpecError):
        assert read_volume(text, allow_host_path=True).path.startswith("/")
    with contextlib.suppress(SpecError):
        assert read_secret(text).secret
