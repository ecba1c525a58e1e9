"""Analysis of a user's source files, without running them.

- Finds the files of the project that a script imports.
- Finds out whether a script only declares apps, so that running it would start nothing.
- Decides whether the fork server preloads torch. No other library is preloaded by default, because others
  read the variables of a rank when they load. The compiler of torch is not preloaded either. With it, a
  data-parallel model is freed when its function returns, which deadlocks with gloo's threads every few runs.
- Finds variables that a script sets before it imports torch, because torch must see them. Statements are
  followed in the order in which Python runs them. In doubt, torch is not preloaded.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass import names
from windlass.errors import SpecError

_MAX_FILES = 200
_TRAIN = ("windlass.train", "windlass.recipes")
_QUIET = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.Pass),
)
TORCH = ("torch",)
# includes what the training library imports to save and shard, so that a restart imports nothing
TRAINING = (*TORCH, "torch.distributed.checkpoint", "torch.distributed.fsdp")

_IS_TORCH = re.compile(r"torch(?![\w.-])", re.IGNORECASE)  # and not torchvision, torch-geometric
_MAX_FOLLOWED = 200
_SETTERS = ("setdefault", "update", "pop", "clear", "popitem", "__setitem__", "__delitem__")
_ENVIRONS = ("environ", "environb")
_FUNCTIONS = ("putenv", "unsetenv", "load_dotenv")
# Variables that neither torch nor its dependencies read during import.
_HARMLESS = (
    *names.READ_LATE,
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "DATASETS_", "ACCELERATE_", "WANDB_"),
    *("MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "RAY_", "HYDRA_", "TF_", "MPL", "TQDM_"),
    *("AWS_", "AZURE_", "GOOGLE_", "OPENAI_", "PYTHONHASHSEED", "PYTHONWARNINGS", "SLURM_"),
)


def read_tree(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file. None if it is missing or not Python."""
    try:
        source = path.read_bytes()
    except OSError:
        return None
    return parse_source(source)


def parse_source(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a source. None if it is not Python."""
    try:
        with warnings.catch_warnings():  # Python repeats these warnings when the file runs
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def list_imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a statement imports, with the level of a relative import."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = (node.module,) if node.module else ()
        for parts in (parents, *((*parents, alias.name) for alias in node.names)):
            if parts:
                yield ".".join(parts), node.level


def is_of_train(name: str) -> bool:
    """Return whether a module is of the training library or a recipe, which both import torch."""
    return name in _TRAIN or name.startswith(tuple(f"{package}." for package in _TRAIN))


def read_imports(path: Path) -> list[tuple[str, int]]:
    """Return the imports of a file, as `list_imports` does, or nothing if it is not valid Python."""
    tree = read_tree(path)
    return [pair for node in ast.walk(tree) for pair in list_imports(node)] if tree else []


def walk_imports(script: Path, root: Path) -> Iterator[tuple[str, int]]:
    """Yield the imports of a script and of the project's files that it imports, as they are written."""
    todo, seen = [script], {script}
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop()
        imported = read_imports(path)
        yield from imported
        for name, level in imported:
            new = [file for file in find_imported(name, level, path, root) if file not in seen]
            seen.update(new)
            todo += new


def find_imported(name: str, level: int, path: Path, root: Path) -> Iterator[Path]:
    """Yield the project's files that importing `name` in the file `path` runs, packages first."""
    above = (root, *path.parents)[level : level + 1]
    for folder in above:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = folder.joinpath(*parts[:depth], "__init__.py")
            if package.is_file():
                yield package
        yield from find_module(name, folder)


def find_module(name: str, root: Path) -> Iterator[Path]:
    """Yield the file of a module in a folder, if it has one."""
    path = root.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            yield candidate


def check_script(source: Path | None, words: Sequence[str]) -> None:
    """Reject a script that declares apps and does nothing with them."""
    if source is None or not only_declares(source):
        return
    raise SpecError(
        f"{source.name} only declares app(...), which starts nothing by itself",
        hint=f"start it with `windlass deploy {words[0]}`, or call app(...).deploy() in the script",
    )


def only_declares(source: Path) -> bool:
    """Return whether running a script would declare apps, and start none of them."""
    tree = read_tree(source)
    return tree is not None and _only_declares_apps(tree)


def _only_declares_apps(tree: ast.Module) -> bool:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(_is_app(call) for call in calls) or not _imports_windlass(tree):
        return False
    if any(getattr(call.func, "attr", "") == "deploy" for call in calls):
        return False
    return all(
        isinstance(node, _QUIET) or (isinstance(node, ast.Expr) and _is_quiet(node.value))
        for node in tree.body
    )


def _is_quiet(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _is_app(value))


def _is_app(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")) == "app"


def _imports_windlass(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(a.name == "windlass" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "windlass")
        for node in ast.walk(tree)
    )


def choose_preload(script: Path) -> tuple[str, ...]:
    """Return what to preload for a script, based on it and the project's files that it imports.

    The search stops at the first import that leads to torch. The training library is searched up to there,
    and in all of the script itself.
    """
    root = script.parent  # folder of absolute imports
    if any(level == 0 and is_of_train(name) for name, level in read_imports(script)):
        return TRAINING
    seen: set[str] = set()
    for name, level in walk_imports(script, root):
        if level == 0 and is_of_train(name):
            return TRAINING
        top = name.partition(".")[0]
        if level or top in seen:
            continue
        seen.add(top)
        if top == "torch" or _needs_torch(top, root):
            return TORCH
    return ()


def _needs_torch(name: str, root: Path) -> bool:
    """Return whether an installed package of that name requires torch."""
    if name in sys.stdlib_module_names or name == "windlass" or any(find_module(name, root)):
        return False
    import importlib.metadata  # slow to import, and rarely needed

    try:
        requires = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(_IS_TORCH.match(line) for line in requires)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyWrite:
    """Place where a variable is set while torch may not be imported yet."""

    path: Path
    line: int
    name: str  # empty if it is known only at run time

    def __str__(self) -> str:
        what = self.name or "variables"
        return f"{self.path.name}:{self.line} sets {what} before torch is imported"


def find_early_write(
    scripts: Sequence[Path], root: Path, *, function: str = ""
) -> EarlyWrite | None:
    """Return the first variable that may matter to torch and is set before its import, or None.

    `scripts` run one after the other, and absolute imports start in `root`. Only the statements of `function`
    run if it is sent without its module.
    """
    walk = _Walk(root)
    has_torch = False
    for script in scripts:
        if function:
            walk.follow_function(script, function)
        else:
            has_torch = walk.follow(script, has_torch=has_torch)
    return walk.early_write


class _Walk:
    """Walk over statements that records the first write to a variable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[Path] = set()
        self._path = root
        self._environs: set[str] = set()
        self.early_write: EarlyWrite | None = None

    def follow(self, path: Path, *, has_torch: bool) -> bool:
        """Follow a file, and return whether torch is imported after it."""
        if has_torch or self.early_write or path in self._seen or len(self._seen) >= _MAX_FOLLOWED:
            return has_torch
        self._seen.add(path)
        tree = read_tree(path)
        if tree is None:
            return has_torch
        before = self._path, self._environs
        self._path, self._environs = path, _find_environs(tree)
        has_torch = self._run(tree.body, has_torch=has_torch)
        self._path, self._environs = before
        return has_torch

    def follow_function(self, path: Path, name: str) -> None:
        """Follow only the functions of that name."""
        tree = read_tree(path)
        if tree is None:
            return
        self._path, self._environs = path, _find_environs(tree)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                self._run(node.body, has_torch=False)

    def _run(self, body: Iterable[ast.stmt], *, has_torch: bool) -> bool:
        for statement in body:
            if has_torch or self.early_write:
                break
            has_torch = self._step(statement, has_torch=has_torch)
        return has_torch

    def _step(self, node: ast.stmt, *, has_torch: bool) -> bool:
        """Follow one statement, and return whether torch is certainly imported after it."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self._import(node, has_torch=has_torch)
        self._note_writes(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._run(node.body, has_torch=has_torch)
            case ast.ClassDef() | ast.With() | ast.AsyncWith():
                return self._run(node.body, has_torch=has_torch)
            case ast.Try():
                for handler in node.handlers:
                    self._run(handler.body, has_torch=has_torch)
                blocks = [*node.body, *node.orelse, *node.finalbody]
                return self._run(blocks, has_torch=has_torch)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                return self._run(node.orelse, has_torch=has_torch)
            case ast.If():
                branches = [self._run(b, has_torch=has_torch) for b in (node.body, node.orelse)]
                return all(branches)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._run([*node.body, *node.orelse], has_torch=has_torch)
            case ast.Match():
                for case in node.cases:
                    self._run(case.body, has_torch=has_torch)
        return has_torch

    def _import(self, node: ast.Import | ast.ImportFrom, *, has_torch: bool) -> bool:
        for name, level in list_imports(node):
            is_used = is_of_train(name) and name.count(".") > 1  # the package alone imports nothing
            if level == 0 and (name.partition(".")[0] == "torch" or is_used):
                return True
            for path in find_imported(name, level, self._path, self._root):
                has_torch = self.follow(path, has_torch=has_torch)
        return has_torch

    def _note_writes(self, node: ast.stmt) -> None:
        for line, name in _Writes(self._environs).find(node):
            if self.early_write is None and (not name or not _is_harmless(name)):
                self.early_write = EarlyWrite(path=self._path, line=line, name=name)


def _is_harmless(name: str) -> bool:
    return name in names.SET_PER_RANK or name.startswith(_HARMLESS)


class _Writes:
    """Finder of the variables that a statement itself writes, without its blocks.

    `environs` are the names of os.environ in the file.
    """

    def __init__(self, environs: set[str]) -> None:
        self._environs = environs

    def find(self, node: ast.stmt) -> Iterator[tuple[int, str]]:
        """Yield lines and variables. The name is empty if it is known only at run time."""
        targets: Sequence[ast.expr] = ()
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        if isinstance(node, ast.AugAssign) and self._is_environ(node.target):
            yield from ((node.lineno, name) for name in _read_names([node.value]))
        for inner in (inner for target in targets for inner in ast.walk(target)):
            if isinstance(inner, ast.Subscript) and self._is_environ(inner.value):
                yield node.lineno, _read_text(inner.slice)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                for inner in ast.walk(child):
                    if isinstance(inner, ast.Call):
                        yield from ((inner.lineno, name) for name in self._find_written(inner))

    def _find_written(self, call: ast.Call) -> Iterator[str]:
        """Yield the variables that a call sets or removes."""
        function = call.func
        called = _name_of(function)
        if called in _FUNCTIONS:
            yield _read_text(call.args[0]) if call.args and called != "load_dotenv" else ""
        elif isinstance(function, ast.Attribute) and self._is_environ(function.value):
            if called == "update":
                yield from _read_names(call.args)
                yield from (keyword.arg or "" for keyword in call.keywords)
            elif called in _SETTERS:
                yield _read_text(call.args[0]) if call.args else ""

    def _is_environ(self, node: ast.expr) -> bool:
        return _is_environ(node) or (isinstance(node, ast.Name) and node.id in self._environs)


def _find_environs(tree: ast.Module) -> set[str]:
    """Return the other names of os.environ in a file."""
    environs: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            environs.update(a.asname or a.name for a in node.names if a.name in _ENVIRONS)
        elif isinstance(node, ast.Assign) and _is_environ(node.value):
            environs.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return environs


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _ENVIRONS


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "id", ""))


def _read_names(given: Sequence[ast.expr]) -> Iterator[str]:
    """Yield the keys of literal dictionaries, and an empty name for other values."""
    for value in given:
        if isinstance(value, ast.Dict):
            yield from (_read_text(key) for key in value.keys)
        else:
            yield ""


def _read_text(key: ast.expr | None) -> str:
    return str(key.value) if isinstance(key, ast.Constant) else ""
