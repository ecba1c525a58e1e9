"""What a node does once before its ranks start: the image's steps, and the variables of the compute.

Both may change while the node lives; the fork server is started anew when they do, since what it has
imported may be another thing now.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from windlass.agent.agent_context import AgentContext
from windlass.agent.node.forkserver_client import ForkServer
from windlass.spec.image_step import ImageStep
from windlass.wire.messages.computes import SetUpNode


class ComputeSetup:
    """The set-up of one node."""

    def __init__(self, context: AgentContext, forks: ForkServer) -> None:
        self._context = context
        self._forks = forks
        self._env: dict[str, str | None] = {}  # None: one of the plan's that is taken away
        self._steps: list[ImageStep] = []
        self._hidden: dict[str, str] = {}
        self.paths: list[str] = []  # of what the steps installed
        self._one = asyncio.Lock()  # a call that was cancelled leaves its set-up running

    async def apply(self, order: SetUpNode, say: Callable[[str], None]) -> bool:
        """Run the steps that were not run yet; whether the fork server was started anew."""
        async with self._one:
            return await self._apply(order, say)

    async def _apply(self, order: SetUpNode, say: Callable[[str], None]) -> bool:
        env, steps, hidden = dict(order.env), list(order.steps), dict(order.hidden)
        if (env, steps, hidden) == (self._env, self._steps, self._hidden):
            return False
        given = {**os.environ, **self._context.plan.env, **env, **hidden}
        ranks_env = {name: value for name, value in given.items() if value is not None}
        if steps != self._steps:
            self.paths = await self._run(steps, order.cwd, ranks_env, say) if steps else []
        self._env, self._steps, self._hidden = env, steps, hidden
        self._forks.close()
        paths = os.pathsep.join((*self.paths, ranks_env.get("PYTHONPATH", ""))).strip(os.pathsep)
        paths_env = {"PYTHONPATH": paths} if paths else {}
        self._forks.start(self._forks.preload, {**ranks_env, **paths_env})
        return True

    async def _run(
        self, steps: list[ImageStep], cwd: str, env: dict[str, str], say: Callable[[str], None]
    ) -> list[str]:
        from windlass.agent.node.image_steps import run_steps

        folder = self._context.folder.path
        return await run_steps(
            steps, folder=folder, python=sys.executable, cwd=cwd, env=env, say=say
        )
