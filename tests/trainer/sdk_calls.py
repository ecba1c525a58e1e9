"""Equal calls on one of two clients. Prints their results as JSON: `python sdk_calls.py MODULE NAMESPACE`.

MODULE is kubeflow.trainer or windlass.trainer. Without a namespace, it only prints the shape of the module's
names.
"""

import dataclasses
import importlib
import inspect
import json
import sys

RECORDS = (
    *("CustomTrainer", "CustomTrainerContainer", "Event", "Runtime", "RuntimeTrainer"),
    *("BuiltinTrainer", "TorchTuneConfig", "LoraConfig", "Initializer"),
    "HuggingFaceModelInitializer",
)
METHODS = (
    *("train", "get_job", "list_jobs", "get_job_logs", "get_job_events", "wait_for_job_status"),
    *("list_runtimes", "get_runtime", "delete_job"),
)
IMAGE = "docker.io/pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"


def add_ranks(more):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + more)])
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}")
    dist.destroy_process_group()


def fail():
    raise ValueError("the user's")


def describe(trainer) -> dict:
    """Describe the fields of records, and the parameters of methods that callers set."""
    kinds = [getattr(trainer, name) for name in RECORDS]
    types = importlib.import_module(
        f"{trainer.__name__}.types" + (".types" if "kubeflow" in trainer.__name__ else "")
    )
    kinds += [types.Step, types.TrainJob]
    methods = [getattr(trainer.TrainerClient, name) for name in METHODS]
    return {
        "records": {
            kind.__name__: [one.name for one in dataclasses.fields(kind) if one.init]
            for kind in kinds
        },
        "methods": {
            method.__name__: [
                one.name
                for one in inspect.signature(method).parameters.values()
                if one.kind is not inspect.Parameter.VAR_KEYWORD
            ]
            for method in methods
        },
    }


def name_error(call) -> str:
    """Return which of the built-in errors that the SDK documents is raised."""
    try:
        call()
    except (ValueError, RuntimeError, TimeoutError) as error:
        kinds = (ValueError, RuntimeError, TimeoutError)
        return next(kind.__name__ for kind in kinds if isinstance(error, kind))
    return "nothing"


def run_calls(trainer, namespace: str) -> dict:
    options = importlib.import_module(f"{trainer.__name__}.options")
    client = trainer.TrainerClient(trainer.KubernetesBackendConfig(namespace=namespace))
    node = {"image": IMAGE, "resources_per_node": {"cpu": 1}}
    work = trainer.CustomTrainer(func=add_ranks, func_args={"more": 1}, num_nodes=2, **node)
    seen = {"runtime": client.get_runtime("torch-distributed").trainer.framework}
    seen["name"] = client.train(trainer=work, options=[options.Name("sums")])
    seen["a second of that name"] = name_error(
        lambda: client.train(trainer=work, options=[options.Name("sums")])
    )
    job = client.wait_for_job_status("sums", timeout=150)
    seen["job"] = [job.name, job.status, job.num_nodes, sorted(step.name for step in job.steps)]
    seen["lines"] = [line for line in client.get_job_logs("sums") if line.startswith("rank")]
    failing = trainer.CustomTrainer(func=fail, **node)
    limit = options.ActiveDeadlineSeconds(15)  # Kubeflow's own client retries until then
    name = client.train(trainer=failing, options=[limit])
    seen["a name of its own"] = isinstance(name, str) and bool(name)
    seen["waiting for success"] = name_error(lambda: client.wait_for_job_status(name, timeout=120))
    seen["failed"] = client.get_job(name).status
    seen["listed"] = sorted(job.status for job in client.list_jobs())
    seen["no such status"] = name_error(lambda: client.wait_for_job_status("sums", {"Done"}))
    for job in (name, "sums"):
        client.delete_job(job)
    seen["no such job"] = name_error(lambda: client.get_job("sums"))
    return seen


if __name__ == "__main__":
    module = importlib.import_module(sys.argv[1])
    result = run_calls(module, sys.argv[2]) if len(sys.argv) > 2 else describe(module)
    sys.stdout.write(json.dumps(result) + "\n")
