"""A module of the project that keeps an object."""

KEPT = []


def keep(thing):
    KEPT.append(thing)
    return len(KEPT)
