"""The spmd framework: runs the same program on every rank, with any library. Preloads nothing by default.

Ranks have torchrun's environment variables. If they use the master port, rank 0 opens it.
"""

from __future__ import annotations

from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework

FRAMEWORK = Framework(
    name="spmd",
    preload=(),
    takes_commands=False,
    gives_list=True,
    count_procs=python_ranks.requested_procs,
    make_env=python_ranks.make_env,
    make_call_env=python_ranks.make_call_env,
    store=None,
    is_consequence=python_ranks.has_lost_peer,
)
