"""Observations of a script at its start."""

import sys

FIRST_NAMES = sorted(globals())
FIRST_MODULES = sorted(sys.modules)
FIRST_PATH = list(sys.path)
# -- imports --

import __main__  # noqa: E402
import dataclasses  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import typing  # noqa: E402

try:
    from observations import attempt, observe
except ImportError:  # the folder is not on the path (PYTHONSAFEPATH)
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from observations import attempt, observe

annotated: int = 1


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    steps: int = 3


def documented(x: int) -> str:
    """Have source code that can be read."""
    return str(x)


def relative_modules():
    import sibling

    return [sibling.VALUE, sibling.__file__, sibling.__name__]


def relative_packages():
    import pkg.inner

    return [pkg.inner.VALUE, pkg.__file__]


def shadowed_library():
    """Return whether a file next to the script shadows a library module that is not yet loaded."""
    import netrc

    return getattr(netrc, "IS_OURS", False)


def compiled_flags():
    scope = {}
    exec("def f(x: int): pass", scope)
    mode = compile("a: int", "x", "exec").co_flags
    return [str(scope["f"].__annotations__), mode, sys._getframe().f_code.co_flags]


def pickled():
    copy = pickle.loads(pickle.dumps(Config(0.5, 1)))
    return [copy == Config(0.5, 1), Config.__module__, Config.__qualname__]


def main_module():
    return [
        __main__.Config is Config,
        sys.modules["__main__"] is __main__,
        __main__.__dict__ is globals(),
    ]


def written_here():
    with open("written.txt", "w") as file:
        file.write("x")
    return oct(os.stat("written.txt").st_mode)


SCRIPT = {
    "main_name": lambda: __name__,
    "main_file": lambda: __file__,
    "main_spec": lambda: str(__spec__ and __spec__.name),
    "main_loader": lambda: [
        type(__loader__).__name__,
        getattr(__loader__, "path", ""),
        __loader__.name,
    ],
    "main_cached": lambda: __cached__,
    "main_annotations": lambda: str(__annotations__),
    "main_doc": lambda: __doc__,
    "main_package": lambda: __package__,
    "main_builtins": lambda: type(__builtins__).__name__,
    "main_module": main_module,
    "first_names": lambda: FIRST_NAMES,
    "module_repr": lambda: repr(__main__),
    "code_object": lambda: [documented.__code__.co_filename, documented.__module__],
    "field_types": lambda: [str(field.type) for field in dataclasses.fields(Config)],
    "annotations_of_functions": lambda: str(documented.__annotations__),
    "type_hints": lambda: str(typing.get_type_hints(Config)),
    "compiled_flags": compiled_flags,
    "arguments": lambda: sys.argv,
    "original_arguments": lambda: sys.orig_argv[1:],
    "path": lambda: [one for one in FIRST_PATH if not one.endswith(".pyz")],
    "working_folder": os.getcwd,
    "relative_modules": relative_modules,
    "relative_packages": relative_packages,
    "shadowed_library": shadowed_library,
    "relative_data": lambda: open("data.txt").read(),
    "data_beside_the_script": lambda: open(
        os.path.join(os.path.dirname(__file__), "data.txt")
    ).read(),
    "written_here": written_here,
    "pickled": pickled,
    "source_of_a_function": lambda: inspect.getsource(documented),
    "source_of_the_module": lambda: len(inspect.getsource(__main__)) > 1000,
    "torch_is_imported_only_if_asked_for": lambda: "torch" in FIRST_MODULES,
    "windlass_is_not_imported": lambda: [
        one for one in FIRST_MODULES if one.startswith("windlass")
    ],
}

if __name__ == "__main__":
    seen = {name: attempt(function) for name, function in SCRIPT.items()} | observe()
    seen["environment"] = dict(os.environ)
    seen["modules"] = FIRST_MODULES
    name = f"start-{os.environ.get('RANK', 0)}.json"
    with open(os.path.join(os.environ.get("OUT_FOLDER", "."), name), "w") as file:
        json.dump(seen, file)
    if "torch_observations" in sys.modules:
        sys.modules["torch_observations"].finish()
