"""Where fine-tunings run on a cluster: a namespace with the guide's claims, and the files in them.

`/app` of the image that `windlass image recipes` describes is a claim here, since the images of a testbed
are not built from a Dockerfile: its programs are made by that Dockerfile's own command, and windlass
itself lies beside them as a zip.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path

from cluster_files import ROOT, Files
from cluster_space import make_claim, open_namespace, serve_files

import windlass
from windlass.engines.archives import list_modules, zip_modules
from windlass.kube.client.api import Api, connect
from windlass.kube.objects.kinds import NODES, PVCS

LLM_IMAGE = os.environ.get("WINDLASS_TEST_LLM_IMAGE", "localhost/llm:testbed")
APP = "app"
CLAIMS = {"datasets-pvc": "data", "outputs-pvc": "out", "models-pvc": "models", APP: APP}
PACKAGE = "windlass.zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmGround:
    """A namespace, and what is in /data, /out, /models and /app of its pods, by these paths."""

    api: Api
    files: Files

    @property
    def settings(self) -> dict[str, str]:
        """The variables with which a job is in here, with the guide's claims."""
        guides = {claim: folder for claim, folder in CLAIMS.items() if claim != APP}
        return {
            "WINDLASS_ENGINE": "kubernetes",
            "WINDLASS_NAMESPACE": self.api.namespace,
            "WINDLASS_IMAGE": LLM_IMAGE,
            "WINDLASS_VOLUMES": ",".join(f"{name}:/{folder}" for name, folder in guides.items()),
        }

    def upload(self, folder: Path, target: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.files.write(f"{target}/{path.relative_to(folder)}", path.read_bytes())

    def download(self, source: str, folder: Path) -> None:
        """The files directly in a folder of the claims."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.files.list(source):
            (folder / name).write_bytes(self.files.read(f"{source}/{name}") or b"")


def has_image() -> bool:
    images = (
        name
        for node in connect(namespace="default").list(NODES)
        for image in node["status"].get("images") or ()
        for name in image.get("names") or ()
    )
    return LLM_IMAGE in images


@contextmanager
def open_ground() -> Iterator[LlmGround]:
    """A namespace of its own, gone afterwards with all that is in it."""
    with open_namespace("windlass-llm") as api:
        for claim in CLAIMS:
            api.create(PVCS, make_claim(claim))
        mounts = {claim: f"{ROOT}/{folder}" for claim, folder in CLAIMS.items()}
        with serve_files(api, image=LLM_IMAGE, name="files", claims=mounts) as files:
            yield LlmGround(api=api, files=files)


def write_app(folder: Path) -> None:
    """What the recipes' image has in /app, made by its Dockerfile's own command; and windlass as a zip."""
    text = package_files("windlass").joinpath("recipes", "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^RUN (mkdir (?:.*\\\n)*.*)", text, flags=re.MULTILINE)
    subprocess.run(["sh", "-ec", command.replace("/app", str(folder))], check=True)
    package = str(Path(windlass.__file__).parent)
    modules = {name: Path(path).read_bytes() for name, path in list_modules(package, "windlass")}
    (folder / PACKAGE).write_bytes(zip_modules(modules, compiled=True))


def write_rows(folder: Path) -> None:
    """train.jsonl and val.jsonl: texts, and messages."""

    def row(i: int) -> dict[str, object]:
        if i % 3:
            return {"text": " ".join(f"{k} and one is {k + 1}." for k in range(1 + i % 5))}
        turns = [("user", f"one and {i}?"), ("assistant", str(i + 1))]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    for name, count in (("train", 96), ("val", 9)):
        lines = (json.dumps(row(i)) + "\n" for i in range(count))
        (folder / f"{name}.jsonl").write_text("".join(lines))
