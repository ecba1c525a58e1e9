"""`windlass image`, which prints the Dockerfile that a file's code describes."""

from __future__ import annotations

import pytest

CODE = """
from beside import PACKAGES
import windlass as kt

class Compute:  # anything that has an image
    def __init__(self, image):
        self.image = image

base = kt.images.pytorch("24.08-py3").pip_install(PACKAGES)
compute = Compute(base)
if __name__ == "__main__":
    raise SystemExit("imported as a program")
"""
DOCKERFILE = (
    "FROM nvcr.io/nvidia/pytorch:24.08-py3\nRUN python3 -m pip install --no-cache-dir einops\n"
)


@pytest.fixture(autouse=True)
def code(project):
    (project / "beside.py").write_text("PACKAGES = ['einops']\n")
    (project / "mine.py").write_text(CODE)


@pytest.mark.parametrize("target", ["mine.py", "mine.py::base", "mine.py::compute"])
def test_the_dockerfile(windlass, target):
    ran = windlass("image", target)
    assert (ran.code, ran.out, ran.err) == (0, DOCKERFILE, "")


def test_as_json(windlass):
    found = windlass("image", "mine.py", "--json").json
    assert found["image"] == "nvcr.io/nvidia/pytorch:24.08-py3"
    assert found["steps"] == [{"kind": "pip", "packages": ["einops"]}]
    assert found["variables"] == {}
    assert found["dockerfile"] == DOCKERFILE


@pytest.mark.parametrize(
    ("target", "more", "message"),
    [
        ("min.py", "", "did you mean mine.py?"),
        ("mine.py::bas", "", "did you mean base?"),
        ("mine.py::PACKAGES", "", "PACKAGES in mine.py is a list without an image"),
        ("mine.py", "other = kt.Image('x:1')", "choose one: mine.py::base"),
        ("beside.py", "", "has no Image and no Compute with one"),
        ("mine.py", "1/0", "importing mine.py raised ZeroDivisionError: division by zero"),
        ("mine.py", "kt.Image('A b')", "invalid image name"),
        ("mine.py", "import sys; sys.exit(3)", "importing mine.py raised SystemExit: 3"),
        ("mine.py::bare", "bare = kt.Image()", "has no base image"),
    ],
)
def test_files_without_an_image(windlass, project, target, more, message):
    (project / "mine.py").write_text(f"{CODE}\n{more}\n")
    ran = windlass("image", target)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
