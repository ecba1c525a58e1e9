"""Images: immutable, validated, and with equal steps in JSON and as a Dockerfile."""

from __future__ import annotations

import json
import pickle
import re
import sys

import pytest

import windlass as wl
from windlass.client.compute.resources.image import render_dockerfile

PIP = "RUN python3 -m pip install --no-cache-dir"


def test_each_method_returns_another_image():
    bare = wl.images.pytorch("24.08-py3")
    full = bare.pip_install(["einops", "torch>=2"]).run("git --version").env(A=1, B="two")
    assert bare.ref == full.ref == "nvcr.io/nvidia/pytorch:24.08-py3"
    assert bare.steps == ()
    assert full.plain_steps() == [
        {"kind": "pip", "packages": ["einops", "torch>=2"]},
        {"kind": "run", "command": "git --version"},
    ]
    assert full.variables == {"A": "1", "B": "two"}
    moved = full.from_docker("localhost/other:1")
    assert (moved.ref, moved.steps) == ("localhost/other:1", full.steps)
    assert moved.env({"B": "2"}).variables == {"A": "1", "B": "2"}


def test_images_are_values():
    a, b = (wl.Image("x:1").pip_install("numpy").env(A="b") for _ in range(2))
    assert a == b == pickle.loads(pickle.dumps(a))
    assert a != a.run("true")
    json.dumps(a.plain_steps())


@pytest.mark.parametrize(
    ("image", "ref"),
    [
        (wl.images.ray("2.40.0-py311"), "rayproject/ray:2.40.0-py311"),
        (wl.images.python("3.12"), "python:3.12-slim"),
        (wl.images.debian(), f"python:3.{sys.version_info[1]}-slim-bookworm"),
    ],
)
def test_images_by_name(image, ref):
    assert image == wl.Image(ref)


def test_reading_image_arguments():
    image = wl.Image("a:1")
    assert wl.Image.read(image) is image
    assert wl.Image.read("a:1") == image
    with pytest.raises(wl.SpecError, match="a name or an Image, not int"):
        wl.Image.read(3)


@pytest.mark.parametrize(
    "ref",
    [
        "torch",
        "torch:2.1",
        "localhost/torch:2.13.0-cpu",
        "host.example:5000/a/b_c/d:Tag_1.0",
        "nvcr.io/nvidia/pytorch:24.08-py3",
        f"torch:1@sha256:{'0' * 64}",
    ],
)
def test_references(ref):
    assert wl.Image(ref).ref == ref


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("a b", "use NAME:TAG"),
        ("docker://torch:1", "remove docker://"),
        ("torch:", "use NAME:TAG"),
        ("Torch:1", "must be lowercase"),
        ("torch:1\n", "use NAME:TAG"),
        (7, "use NAME:TAG"),
    ],
)
def test_invalid_references(ref, hint):
    with pytest.raises(wl.SpecError) as caught:
        wl.Image(ref)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("numpy", ("numpy",)),
        ("numpy >= 2, <3", ("numpy >= 2, <3",)),
        (["a[x,y]==1.0.*", "b~=1.0; python_version < '3.12'"], None),
        (["mine @ https://example.org/mine.whl", "git+https://example.org/x.git"], None),
        ("-r requirements.txt", ("-r", "requirements.txt")),
        (["--no-index", "--find-links", "my wheels", "tiny"], None),
        (["./wheels/mine-1.0-py3-none-any.whl", ".", "lib/mine[extra]"], None),
    ],
)
def test_packages(given, words):
    (step,) = wl.Image().pip_install(given).steps
    assert step.packages == (words or tuple(given))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("numpy=1.2", "did you mean numpy==1.2?"),
        ("numpy pandas", "pass them separately: ['numpy', 'pandas']"),
        ("numpy, pandas", "pass them separately"),
        ([], "pip_install(["),
        ("", "pip_install(["),
        ([3], "pip_install(["),
        (3, "pip_install(["),
        ({"numpy": 1}, "pip_install(["),
        (["--target", "x", "numpy"], "remove it"),
        ("--prefix=/usr numpy", "remove it"),
        ("https://me:s3cret@example.org/x.whl", "with a Secret"),
    ],
)
def test_invalid_packages(given, hint):
    with pytest.raises(wl.SpecError) as caught:
        wl.Image().pip_install(given)
    assert hint in caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_commands():
    assert wl.Image().run(["echo", "a b"]).plain_steps()[0]["command"] == "echo 'a b'"
    for bad in ("", "  ", 3, [], ["a", 1], "a\0b"):
        with pytest.raises(wl.SpecError, match="run takes a command as a string"):
            wl.Image().run(bad)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"A B": "1"}, "invalid environment variable name 'A B'"),
        ({"RANK": "1"}, "an image cannot set RANK"),
        ({"A": None}, "must be a string or a number, not NoneType"),
        ({"A": True}, "must be a string or a number, not bool"),
        ({"A": "\0"}, "must be a string"),
    ],
)
def test_invalid_variables(given, message):
    with pytest.raises(wl.SpecError, match=message):
        wl.Image().env(given)
    with pytest.raises(wl.SpecError, match=message):
        wl.Image(variables=given)


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda: wl.Image().pip_instal, "did you mean pip_install?"),
        (lambda: wl.Image().run_bash, "did you mean run?"),
        (lambda: wl.Image().set_env_vars, "did you mean env?"),
        (lambda: wl.Image().zzz, "available: pip_install, run, env, from_docker"),
        (lambda: wl.images.pytorc, "did you mean pytorch?"),
        (lambda: wl.images.Debian, "did you mean debian?"),
    ],
)
def test_missing_methods(look, message):
    with pytest.raises(AttributeError, match=re.escape(message)):
        look()


@pytest.mark.parametrize(("tag", "hint"), [(3.12, 'write "3.12"'), ("a b", 'a tag such as "3.12"')])
def test_invalid_tags(tag, hint):
    with pytest.raises(wl.SpecError) as caught:
        wl.images.python(tag)
    assert hint in caught.value.hint


def test_invalid_steps():
    with pytest.raises(wl.SpecError, match="invalid image step 'pip install x'"):
        wl.Image(steps=["pip install x"])


# -- the Dockerfile ----------------------------------------------------------------------------------


def test_the_dockerfile_of_the_same_steps():
    image = (
        wl.Image("torch:2")
        .env(PRICE='$5 "net"')
        .pip_install(["torch>=2", "./wheels/mine-1.0-py3-none-any.whl", "-r", "needs.txt"])
        .run("apt-get update && apt-get install -y git")
        .run("one\ntwo")
        .pip_install(["./wheels/mine-1.0-py3-none-any.whl", "--find-links=wheels"])
    )
    assert render_dockerfile(image).splitlines() == [
        "FROM torch:2",
        "# nodes run commands in the project's folder: COPY the files they need",
        r'ENV PRICE="\$5 \"net\""',
        "WORKDIR /build",
        'COPY ["wheels/mine-1.0-py3-none-any.whl", "/build/wheels/mine-1.0-py3-none-any.whl"]',
        'COPY ["needs.txt", "/build/needs.txt"]',
        f"{PIP} 'torch>=2' ./wheels/mine-1.0-py3-none-any.whl -r needs.txt",
        "RUN apt-get update && apt-get install -y git",
        r'RUN ["/bin/sh", "-c", "one\ntwo"]',
        'COPY ["wheels", "/build/wheels"]',
        f"{PIP} ./wheels/mine-1.0-py3-none-any.whl --find-links=wheels",
    ]


def test_a_plain_dockerfile():
    image = wl.Image("torch:2").pip_install(["numpy", "git+https://example.org/x.git", "--pre"])
    assert render_dockerfile(image) == (
        "FROM torch:2\n"
        "RUN python3 -m pip install --no-cache-dir numpy git+https://example.org/x.git --pre\n"
    )


def test_steps_that_a_dockerfile_cannot_express():
    with pytest.raises(wl.SpecError, match="has no base image"):
        render_dockerfile(wl.Image().run("true"))
    with pytest.raises(wl.SpecError, match="the value of A has several lines"):
        render_dockerfile(wl.Image("x:1").env(A="a\nb"))
