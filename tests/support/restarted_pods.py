"""Pods of a kind that restarts its containers, on this machine, with folders that outlive the containers."""

from __future__ import annotations

import os
import socket
import subprocess

from pod_connections import make_job
from pod_programs import make_command
from tls_peers import JOB, connect_lead, write_certificates
from waits import wait_for

from windlass.engines.archives import local_archive
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.plan.plan import render_plan
from windlass.spec.pod_spec import PodSpec
from windlass.spec.work import Command
from windlass.wire.job_folder import JobFolder


class Pod:
    """Pod of a StatefulSet, with its own folder and one container after another."""

    def __init__(self, job, index, uid="uid-1"):
        self.job, self.index, self.uid = job, index, uid
        self.folder = JobFolder(job.tmp_path / f"pod-{index}-{uid}")
        self.folder.path.mkdir()
        self.log = job.tmp_path / f"log-{index}-{uid}"
        self.process = None

    def start(self, *, stays_up=True, tells_failure=False, **env):
        """Start a container of this pod."""
        about = {
            "secret": str(self.job.secret),
            "folder": str(self.folder.path),
            "port": self.job.port,
            "message": str(self.job.tmp_path / f"message-{self.index}"),
            "archive": str(local_archive()),
        }
        env = {
            **os.environ,
            **env,
            "WINDLASS_LEAD": "127.0.0.1",
            "WINDLASS_POD_IP": "127.0.0.1",
            "WINDLASS_POD_UID": self.uid,
            "WINDLASS_NODE_INDEX": str(self.index),
            "WINDLASS_STAYS_UP": "1" if stays_up else "",
            "WINDLASS_TELLS_FAILURE": "1" if tells_failure else "",
        }
        with self.log.open("ab") as log, self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                make_command("container", about), env=env, stdout=log, stderr=errors
            )
        return self

    @property
    def errors(self):
        return self.log.with_name(f"{self.log.name}-errors")

    def says(self, text, times=1):
        return self.errors.read_text().count(text) >= times

    def idles(self, times=1):
        wait_for(lambda: self.says("this pod stays", times), f"node {self.index} idles")
        assert self.process.poll() is None

    def end(self, signum):
        self.process.send_signal(signum)
        return self.process.wait(20)


class PodJob:
    """Job of a few pods, whose ranks append a line to a file."""

    def __init__(self, tmp_path, script, **spec):
        self.tmp_path = tmp_path
        self.runs = tmp_path / "runs"
        self.secret = write_certificates(tmp_path / "secret")
        work = Command(argv=("sh", "-c", f"echo $RANK >> {self.runs}; {script}"))
        pod = PodSpec(image="none", **spec.pop("pod", {}))
        self.plan = make_job(**{"nodes": 1, "work": work, "pod": pod, **spec})
        (self.secret / "plan.json").write_text(render_plan(self.plan))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.pods = []

    def start(self, index, uid="uid-1", **about):
        """Create a pod and start its first container."""
        self.pods.append(Pod(self, index, uid))
        return self.pods[-1].start(**about)

    def clear(self):
        """Kill all remaining containers, and print their logs."""
        for pod in self.pods:
            pod.process.kill()
            pod.process.wait(20)
            print(pod.errors.read_text())

    def num_runs(self):
        return len(self.runs.read_text().splitlines())

    def read(self, name):
        """Return the folder of a client that has read this job up to its final status."""
        folder = JobFolder(self.tmp_path / name)
        folder.path.mkdir()
        sync = LeadSync(JOB, folder, lambda: connect_lead(self.port, self.secret))
        sync.finish()
        wait_for(lambda: sync._has_last, "the last status has arrived")
        sync.close()
        return folder
