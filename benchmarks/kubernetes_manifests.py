"""The objects of contestants that nobody exports: the floor's Job, Kubeflow's TrainJob and PyTorchJob. Pure.

Like every contestant's they ask for no resources, run as user 1000 and never share a host.
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
# neither operator has a place for a script: their own Python SDKs hand it to a shell in the same way
_TRAIN = 'printf "%s" "$SCRIPT" > /tmp/train.py && exec torchrun /tmp/train.py'


def make_floor(name: str, *, image: str, nodes: int) -> Object:
    """An Indexed Job whose pods import torch, say so and end."""
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
    """A TrainJob of Kubeflow Trainer that runs the script under torchrun."""
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
    """A PyTorchJob of training-operator that runs the script under torchrun: a Master, and Workers."""
    container = {
        "name": "pytorch",  # the operator wants one of this name
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
    """Where the pods run, and as whom."""
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
