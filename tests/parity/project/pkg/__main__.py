import json
import sys

from . import inner

FIRST = sorted(name for name in globals() if name.startswith("__"))

with open("module.json", "w") as file:
    json.dump(
        {
            "name": __name__,
            "file": __file__,
            "package": __package__,
            "spec": [__spec__.name, __spec__.parent, __spec__.origin],
            "loader": type(__loader__).__name__,
            "cached": bool(__cached__),
            "names": FIRST,
            "argv": sys.argv,
            "path": sys.path[0],
            "inner": inner.__name__,
            "is_main": sys.modules["__main__"].__dict__ is globals(),
        },
        file,
    )
