"""Count the source's files, statements and import lines, and the files on two hot paths.

    python tools/count_structure.py                   static counts (2 s)
    python tools/count_structure.py --paths           also trace a local run and a warm call (10 s)
    python tools/count_structure.py --paths --files   name the files on each path, with their processes

A path is a set of Windlass's files. It has each file that runs a function between the user's call and the
first line of the rank's function, in any process: client, agent, fork server or rank. Code that runs during
an import does not count. The traces use a copy of the package whose `__init__.py` installs a profile function
in every process. This script names no module of the package, so it still works after files have moved.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "windlass"
TIMEOUT_S = 120.0
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE |= {tokenize.ENCODING, tokenize.ENDMARKER}
BLOCKS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

HotPath: TypeAlias = dict[
    str, list[str]
]  # files whose functions ran, with the processes that ran them


@dataclass(frozen=True)
class Counts:
    """Static counts of some files."""

    files: int
    statements: int  # nodes of the syntax tree, including docstrings
    code_lines: int  # without blank lines, comments and docstrings
    import_lines: int

    @property
    def import_percent(self) -> float:
        """Percentage of the code lines that are imports."""
        return 100 * self.import_lines / self.code_lines if self.code_lines else 0.0


def list_sources(root: Path) -> list[Path]:
    """Return the Python files below src that git tracks and that exist."""
    command = ["git", "ls-files", "-z", "src/*.py"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in listed.split("\0") if name and (root / name).exists()]


def count(paths: Iterable[Path]) -> Counts:
    """Count files, statements, lines of code and lines of imports."""
    files = statements = code_lines = import_lines = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
        documented = (n for n in nodes if isinstance(n, BLOCKS) and ast.get_docstring(n))
        files += 1
        statements += sum(isinstance(node, ast.stmt) for node in nodes)
        code_lines += len(find_token_lines(source) - find_lines(n.body[0] for n in documented))
        import_lines += len(find_lines(imports))
    return Counts(files, statements, code_lines, import_lines)


def find_token_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold code or a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in NO_CODE)
    return set().union(*spans)


def find_lines(statements: Iterable[ast.stmt]) -> set[int]:
    """Return the numbers of the lines of some statements."""
    return set().union(*(range(s.lineno, (s.end_lineno or s.lineno) + 1) for s in statements))


# The first byte of `switch` is 1 while calls count. Every process maps it, so none has to be notified.
# A process reports a file when it first sees it, because ranks and agents may end without exit handlers.
_TRACER = """
import mmap, os, sys, threading

def install(folder, mark):
    with open(folder + "/switch", "rb") as file:
        switch = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    started, seen = os.getpid(), set()
    pairs = zip(sys.orig_argv, sys.orig_argv[1:])
    role = next((word for before, word in pairs if before.endswith(".pyz")), "client")

    def note(frame, event, _argument):
        if event != "call" or switch[0] != 1:
            return
        path, pid = frame.f_code.co_filename, os.getpid()
        if mark not in path or (pid, path) in seen or is_import(frame):
            return
        seen.add((pid, path))
        process = role if pid == started else "rank"
        out = os.open(folder + "/seen", os.O_WRONLY | os.O_APPEND)
        os.write(out, (process + " " + path.rpartition(mark)[2] + chr(10)).encode())
        os.close(out)

    def is_import(frame):
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        return frame is not None

    threading.setprofile(note)
    sys.setprofile(note)
"""
_FUTURE = "from __future__ import annotations\n"  # must be the first statement
_INSTALL = "exec(open({file!r}).read(), _own := {{}}); _own['install']({folder!r}, {mark!r})\n"

# A user's program. The first steps fill caches and start processes, and only the last run or call counts.
# The warm call keeps its ranks, because new ones for the next call would be forked while this one starts.
_PROGRAM = """
import time

def switch(on):
    with open({switch!r}, "r+b", buffering=0) as file:
        file.write(bytes([on]))

def work():
    switch(0)

if __name__ == "__main__":
    import windlass
{steps}"""
_STEPS = {
    "local run": """
    windlass.run(work)
    switch(1)
    windlass.run(work)
""",
    "warm call": """
    compute = windlass.Compute(inactivity_ttl=60)
    try:
        remote = windlass.fn(work, keep="process").to(compute)
        remote()
        remote()
        time.sleep(1.0)  # the agent finishes what follows a call
        switch(1)
        remote()
    finally:
        compute.teardown()
""",
}


def trace_all() -> dict[str, HotPath]:
    """Trace each path and return the files on it."""
    with tempfile.TemporaryDirectory(prefix="count-structure-") as made:
        folder = Path(made)
        package = copy_traced(folder)
        return {name: find_path(folder, package, steps) for name, steps in _STEPS.items()}


def copy_traced(folder: Path) -> Path:
    """Copy the package and make its `__init__.py` install the profile function first."""
    package, tracer = folder / "src" / PACKAGE, folder / "tracer.py"
    shutil.copytree(ROOT / "src" / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    tracer.write_text(_TRACER)
    install = _INSTALL.format(file=str(tracer), folder=str(folder), mark=f"{PACKAGE}/")
    init = package / "__init__.py"
    before, future, after = init.read_text(encoding="utf-8").partition(_FUTURE)
    init.write_text(f"{before}{future}{install}{after}", encoding="utf-8")
    return package


def find_path(folder: Path, package: Path, steps: str) -> HotPath:
    """Run a user's program on the traced copy and return the files that were seen, with their processes."""
    switch, seen, project = folder / "switch", folder / "seen", folder / "project"
    switch.write_bytes(b"\0")
    seen.write_bytes(b"")
    project.mkdir(exist_ok=True)
    program = project / "program.py"
    program.write_text(_PROGRAM.format(switch=str(switch), steps=steps))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WINDLASS_", "XDG_"))}
    env |= {"PYTHONPATH": str(folder / "src"), "HOME": str(folder)}
    env |= {"WINDLASS_HOME": str(folder / "home"), "WINDLASS_ENGINE": "local"}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S}
    ran = subprocess.run([sys.executable, str(program)], cwd=project, env=env, **how)
    if ran.returncode or switch.read_bytes() != b"\0" or not seen.stat().st_size:
        raise SystemExit(f"{program.read_text()}\nexited with {ran.returncode}:\n{ran.stderr}")
    files: HotPath = {}
    for line in sorted(set(seen.read_text().splitlines())):
        process, name = line.split(" ", 1)
        if (package / name).is_file():  # generated code has other names
            files.setdefault(name, []).append(process)
    return dict(sorted(files.items()))


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--paths", action="store_true", help="trace a local run and a warm call")
    parser.add_argument("--files", action="store_true", help="name the files on each path")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    counts, paths = count(list_sources(ROOT)), trace_all() if asked.paths else {}
    render = render_json if asked.json else render_table
    sys.stdout.write(render(counts, paths, with_files=asked.files) + "\n")
    return 0


def render_json(counts: Counts, paths: dict[str, HotPath], *, with_files: bool) -> str:
    """Render everything as one JSON object."""
    shown = {name: path if with_files else len(path) for name, path in paths.items()}
    static = {**asdict(counts), "import_percent": round(counts.import_percent, 1)}
    return json.dumps({**static, "paths": shown}, indent=2)


def render_table(counts: Counts, paths: dict[str, HotPath], *, with_files: bool) -> str:
    """Render a table, with the files of each path if requested."""
    rows = {
        "files": f"{counts.files:,}",
        "statements": f"{counts.statements:,}",
        "code lines": f"{counts.code_lines:,}",
        "import lines": f"{counts.import_lines:,} ({counts.import_percent:.1f} %)",
        **{f"files on a {name}": describe(path) for name, path in paths.items()},
    }
    lines = [f"{label:22} {value}" for label, value in rows.items()]
    for name, path in paths.items() if with_files else ():
        lines += ["", name, *(f"  {file:40} {', '.join(path[file])}" for file in path)]
    return "\n".join(lines)


def describe(path: HotPath) -> str:
    """Return the number of files on a path, and how many of them each kind of process runs."""
    counted = Counter(process for processes in path.values() for process in processes)
    parts = ", ".join(f"{process} {number}" for process, number in sorted(counted.items()))
    return f"{len(path)} ({parts})"


if __name__ == "__main__":
    sys.exit(main())
