"""`windlass`, killed with SIGKILL when the API server has answered a given number of requests.

Usage: python killed_client.py NUMBER ARGUMENT...
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import urllib3

from windlass.cli.main import main


def kill_after(number: int) -> None:
    """Kill this process after the given number of answers, counted over all threads."""
    ask = urllib3.HTTPConnectionPool.urlopen
    lock = threading.Lock()
    answers: list[str] = []

    def urlopen(pool: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        answer = ask(pool, method, url, *args, **options)
        with lock:
            answers.append(f"{method} {url}")
            if len(answers) == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return answer

    urllib3.HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign]


if __name__ == "__main__":
    kill_after(int(sys.argv.pop(1)))
    sys.exit(main())
