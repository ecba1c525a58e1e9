"""One container of a pod, but on this machine: the agent's own program, with folders that a test chose."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from windlass import names
from windlass.agent import agent_process, pod_output
from windlass.agent.pod_process import run_pod


def main(about: dict) -> None:
    sys.argv[0] = about["archive"]  # what fork servers are started from
    names.SECRET_FOLDER = names.FILES_FOLDER = about["secret"]
    names.JOB_FOLDER = about["folder"]
    names.HOME_FOLDER = f"{about['folder']}/home"
    names.AGENT_PORT = about["port"]
    pod_output._MESSAGE_FILE = Path(about["message"])
    agent_process._FIRST_READER_S = 0.1
    run_pod()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
