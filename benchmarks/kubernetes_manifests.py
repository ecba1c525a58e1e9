"""Manifests that `windlass export` cannot produce: the floor's Job, Kubeflow's TrainJob and PyTorchJob.

Like those of all contestants, their pods request no resources, run as user 1000 and never share a host.
This module performs no I/O.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

_USER = 1000
_LABEL = "bench"
_FLOOR = """\
import json, os, time
import torch
done_s = time.time()
fields = open("/proc/1/stat").read().rpartition(")")[2].split()
booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
container_s = booted_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
rank = int(os.environ["JOB_COMPLETION_INDEX"])
stamps = {"rank": rank, "size": SIZE, "container": container_s, "reduced": done_s}
print("BENCH " + json.dumps(stamps), flush=True)
"""
# neither operator has a field for a script, so their own Python SDKs pass it to a shell in the same way
_TRAIN = 'printf "%s" "$SCRIPT" > /tmp/train.py && exec torchrun /tmp/train.py'


def make_floor(name: str, *, image: str, nodes: int) -> Object:
    """Return an Indexed Job whose pods import torch, print a stamp and end."""
    source = _FLOOR.replace("SIZE", str(nodes))
    container = {
        "name": "floor",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", source],
    }
    pod = {"restartPolicy": "Never", **_make_pod(name), "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {_LABEL: name}}, "spec": pod},
        },
    }


def make_train_job(name: str, *, image: str, nodes: int, procs: int, script: str) -> Object:
    """Return a Kubeflow Trainer TrainJob that runs the script under torchrun."""
    template = {"metadata": {"labels": {_LABEL: name}}, "spec": _make_pod(name)}
    patch = {"name": "node", "template": {"spec": {"template": template}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": image,
                "numNodes": nodes,
                "numProcPerNode": procs,
                "command": ["bash", "-c", _TRAIN],
                "env": [{"name": "SCRIPT", "value": script}],
            },
            "runtimePatches": [
                {
                    "manager": "windlass.dev/benchmark",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patch]}}},
                }
            ],
        },
    }


def make_pytorch_job(name: str, *, image: str, nodes: int, procs: int, script: str) -> Object:
    """Return a training-operator PyTorchJob with a Master and Workers that run the script under torchrun."""
    container = {
        "name": "pytorch",  # the operator requires this name
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", _TRAIN],
        "env": [{"name": "SCRIPT", "value": script}],
    }
    pod = {**_make_pod(name), "containers": [container]}
    template = {"metadata": {"labels": {_LABEL: name}}, "spec": pod}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": str(procs),
            "pytorchReplicaSpecs": {
                kind: {"replicas": number, "restartPolicy": "OnFailure", "template": template}
                for kind, number in (("Master", 1), ("Worker", nodes - 1))
            },
        },
    }


def _make_pod(name: str) -> Object:
    """Return the affinity and the user that all pods share."""
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {_LABEL: name}},
    }
    return {
        "securityContext": {"runAsUser": _USER, "runAsGroup": _USER},
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
    }
