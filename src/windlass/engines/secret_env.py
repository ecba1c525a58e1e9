"""Hidden values: variables that ranks get and that nobody reads in a plan.

Checked here, for every engine alike. Their values are never shown, not even when something is wrong with
them: an error names the variable only. How they travel is each engine's matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windlass import names
from windlass.errors import SpecError

NO_HIDDEN: Mapping[str, str] = {}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OURS = "WINDLASS_"


def check_hidden(hidden: Mapping[str, str]) -> dict[str, str]:
    """The same variables, if they can be set for ranks."""
    for name, value in hidden.items():
        if not _NAME.match(name):
            raise SpecError(
                f"{name!r} is not a name for an environment variable",
                hint="letters, digits and _, not starting with a digit",
            )
        if name in names.SET_PER_RANK or name.startswith(_OURS):
            raise SpecError(
                f"{name} is set by Windlass, so a secret cannot set it",
                hint="give the variable another name",
            )
        if "\0" in value:
            raise SpecError(
                f"the value of {name} holds a NUL character, which no environment can carry",
                hint="a secret that is not text can be mounted as a file",
            )
    return dict(hidden)
