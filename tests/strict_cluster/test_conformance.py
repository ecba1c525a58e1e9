"""`windlass conformance`, run by a user with the documented Role in one namespace and no other rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from strict_cluster.ground import Ground

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(300)
def test_cases_that_need_more_rights_are_skipped(plain: Ground) -> None:
    words = ["-e", "kubernetes", "-k", "rank_order or starts_every_rank_again", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "windlass.cli.main", "conformance", *words],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    rows = {row["case"].partition("::")[2]: row for row in json.loads(ran.stdout)}
    assert rows["test_every_rank_in_rank_order"]["result"] == "passed"
    again = rows["test_restart_starts_every_rank_again"]
    assert again["result"] == "skipped"
    assert again["reason"].startswith("pods share no folder: you may not create pods")
    plain.wait_for_nothing()
