"""Version 0.1.0 of Windlass from this repository's history, and the jobs that its clients start.

`python tests/compat/version_0_1_0.py` records into `tests/compat/data/0.1.0`. It records the folders of two
jobs, and one message of each kind that leads sent to clients.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "8f0e010"  # the last commit of that version with the first layout
DATA = Path(__file__).parent / "data/0.1.0"
TIMEOUT_S = 300.0

WORK = """
import os
import signal


def add(a, b=2):
    print("adding on", os.environ["RANK"], flush=True)
    return a + b


def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
    signal.pause()


def stay():
    print("up", flush=True)
    signal.pause()
"""

CLIENT = """
import json
import os
import sys
source, kind = sys.argv[1:]
sys.path.insert(0, source)
import windlass as wl
import old_work
assert wl.__file__.startswith(source), wl.__file__
if "RECORD" in os.environ:
    from windlass.wire.message import Direction

    read = Direction.read

    def read_and_record(direction, header):
        with open(os.environ["RECORD"], "a") as file:
            print(json.dumps([direction.sender, direction.receiver, header]), file=file)
        return read(direction, header)

    Direction.read = read_and_record
if kind == "compute":
    compute = wl.Compute(name="warm")
    print(wl.fn(old_work.add).to(compute)(1), file=sys.stderr)
    print("warm")
    if "RECORD" in os.environ:
        compute.teardown()
elif kind == "run":
    print(wl.run(old_work.add, (1,), quiet=True))
else:
    job = wl.submit(getattr(old_work, kind), (1,) if kind == "add" else (), nodes=2, name=kind)
    if kind != "stay":
        job.wait(120)
    print(job.ref)
"""


class NoHistory(Exception):
    """Raised if the commit is missing, as in a shallow clone or outside a repository."""


def unpack_source(folder: Path) -> Path:
    """Write the sources of version 0.1.0 below a folder, and return the entry for the Python path."""
    try:
        archive = subprocess.run(
            ["git", "archive", COMMIT, "src"], cwd=ROOT, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"the history has no commit {COMMIT}, which was version 0.1.0") from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def start(source: Path, kind: str, project: Path) -> str:
    """Start a job or a compute with a client of version 0.1.0. Return its reference or name."""
    project.mkdir(exist_ok=True)
    (project / "old_work.py").write_text(WORK)
    (project / "old_client.py").write_text(CLIENT)
    (project / "windlass.toml").touch()
    ran = subprocess.run(
        [sys.executable, "old_client.py", str(source), kind],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()[-1]


def record() -> None:
    """Record two jobs, one of which failed, and the messages. Replace this machine's paths."""
    shutil.rmtree(DATA, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        os.environ["WINDLASS_HOME"] = str(folder / "home")
        source = unpack_source(folder)
        for kind in ("add", "fail"):
            job_id = start(source, kind, folder / "project").rpartition("/")[2]
            shutil.copytree(folder / "home/jobs" / job_id, DATA / "jobs" / job_id)
        os.environ["RECORD"] = str(folder / "heard")
        for kind in ("run", "compute"):
            start(source, kind, folder / "project")
        heard = [json.loads(line) for line in (folder / "heard").read_text().splitlines()]
        kinds = {(sender, receiver, header["type"]): header for sender, receiver, header in heard}
        rows = [[sender, receiver, header] for (sender, receiver, _), header in kinds.items()]
        (DATA / "messages.json").write_text(json.dumps(rows, indent=1) + "\n")
        for path in [path for path in DATA.rglob("*") if path.is_file()]:
            sockets = f"{tempfile.gettempdir()}/windlass-{os.geteuid()}"
            known = {str(folder): "/home/user", sys.prefix: "/usr", str(ROOT): "/src"}
            anonymize(path, {**known, sockets: "/home/user/sockets"})


def anonymize(path: Path, names: dict[str, str]) -> None:
    data = path.read_bytes()
    for old, new in names.items():
        data = data.replace(old.encode(), new.encode())
    path.write_bytes(data)


if __name__ == "__main__":
    record()
