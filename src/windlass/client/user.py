"""Who this is: the name that a person's computes start with and are known as theirs by."""

from __future__ import annotations

import getpass


def name_user() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "user"
