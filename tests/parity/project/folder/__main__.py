import json
import sys

import beside

with open("folder.json", "w") as file:
    json.dump(
        {
            "name": __name__,
            "file": __file__,
            "package": __package__,
            "argv": sys.argv,
            "path": sys.path[0],
            "beside": beside.__file__,
        },
        file,
    )
