"""Namespace of a cluster for fine-tunings, with the guide's claims and the files in them.

`windlass image recipes` describes an image with `/app`. The images of a testbed are not built from a
Dockerfile, so here `/app` is a claim. The Dockerfile's own command makes its programs, and windlass is next
to them as a zip.
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
    """Namespace whose pods have /data, /out, /models and /app, with access to the files under these paths."""

    api: Api
    files: Files

    @property
    def settings(self) -> dict[str, str]:
        """Return the variables that make a job use this namespace and the guide's claims."""
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
        """Download the files directly in a folder of the claims."""
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
    """Create a namespace, and delete it with all its objects on exit."""
    with open_namespace("windlass-llm") as api:
        for claim in CLAIMS:
            api.create(PVCS, make_claim(claim))
        mounts = {claim: f"{ROOT}/{folder}" for claim, folder in CLAIMS.items()}
        with serve_files(api, image=LLM_IMAGE, name="files", claims=mounts) as files:
            yield LlmGround(api=api, files=files)


def write_app(folder: Path) -> None:
    """Write the contents of /app with the Dockerfile's own command, and windlass as a zip."""
    text = package_files("windlass").joinpath("recipes", "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^RUN (mkdir (?:.*\\\n)*.*)", text, flags=re.MULTILINE)
    subprocess.run(["sh", "-ec", command.replace("/app", str(folder))], check=True)
    package = str(Path(windlass.__file__).parent)
    modules = {name: Path(path).read_bytes() for name, path in list_modules(package, "windlass")}
    (folder / PACKAGE).write_bytes(zip_modules(modules, compiled=True))


def write_rows(folder: Path) -> None:
    """Write train.jsonl and val.jsonl with texts and messages."""

    def row(i: int) -> dict[str, object]:
        if i % 3:
            return {"text": " ".join(f"{k} and one is {k + 1}." for k in range(1 + i % 5))}
        turns = [("user", f"one and {i}?"), ("assistant", str(i + 1))]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    for name, count in (("train", 96), ("val", 9)):
        lines = (json.dumps(row(i)) + "\n" for i in range(count))
        (folder / f"{name}.jsonl").write_text("".join(lines))
