"""Distributed data parallel on a Monarch mesh: one actor per GPU trains a small model for one step.

    windlass run examples/kubernetes_ddp.py --framework monarch --nodes 2 -- --num_hosts 2 --gpus_per_host 1
    windlass run examples/kubernetes_ddp.py --framework monarch --nodes 2 --gpus 4 -e kubernetes --image IMAGE

The same file runs in a controller pod, without Windlass, with an existing MonarchMesh:

    python kubernetes_ddp.py --num_hosts 2 --gpus_per_host 4 --mesh_name ddpmesh

Each rank prints its progress to the standard output of its host. Without GPUs it uses gloo on the CPU.
"""

from __future__ import annotations

import argparse
import os
import socket

import torch
import torch.distributed as dist
from monarch.actor import Actor, HostMesh, current_rank, endpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES = 10


class Trainer(Actor):
    """One rank. The script passes it the address at which the ranks rendezvous."""

    def __init__(self, gpus_per_host: int) -> None:
        self.rank = current_rank().rank
        self.local_rank = self.rank % gpus_per_host

    def say(self, text: str) -> None:
        print(f"{self.rank=} {text}", flush=True)

    @endpoint
    def find_rendezvous(self) -> tuple[str, int]:
        """Return an address that other hosts can reach, and a free port on this host."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return find_address(), port

    @endpoint
    def initialize(self, address: str, port: int, world_size: int) -> None:
        self.say("Initializing torch distributed")
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=self.rank,
            world_size=world_size,
        )
        self.say("Finished initializing torch distributed")

    @endpoint
    def train_step(self) -> float:
        """Do one step, and return a checksum of the weights, which must be equal on every rank."""
        self.say("Running basic DDP example")
        self.say(f"local_rank={self.local_rank}")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 5))
        device, own = torch.device("cpu"), None
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank)
            device, own = torch.device("cuda", self.local_rank), [self.local_rank]
        parallel = DistributedDataParallel(model.to(device), device_ids=own)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.001)
        torch.manual_seed(self.rank)
        inputs = torch.randn(20, FEATURES, device=device)
        targets = torch.randn(20, 5, device=device)
        nn.functional.mse_loss(parallel(inputs), targets).backward()
        optimizer.step()
        self.say("Finished running basic DDP example")
        return float(sum(weight.abs().sum() for weight in parallel.parameters()))

    @endpoint
    def clean_up(self) -> None:
        dist.destroy_process_group()


def find_address() -> str:
    """Return the address of this host's name, which other hosts can reach if it is a pod."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def find_mesh(args: argparse.Namespace) -> HostMesh:
    """Return the hosts that Windlass started for this script, or those of an existing mesh."""
    if "WINDLASS_JOB_ID" in os.environ:
        import windlass.monarch

        return windlass.monarch.host_mesh()
    from monarch.job.kubernetes import KubernetesJob

    job = KubernetesJob(namespace=args.namespace)
    job.add_mesh(args.mesh_name, args.num_hosts)
    return getattr(job.state(cached_path=None), args.mesh_name)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DDP on a Monarch mesh")
    parser.add_argument("--num_hosts", type=int, default=2, help="hosts of the mesh")
    parser.add_argument("--gpus_per_host", type=int, default=4, help="ranks on each host")
    parser.add_argument("--mesh_name", default="ddpmesh", help="name of an existing MonarchMesh")
    parser.add_argument("--namespace", default="monarch-tests", help="namespace of the mesh")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    hosts = find_mesh(args)
    procs = hosts.spawn_procs({"gpus": args.gpus_per_host})
    trainers = procs.spawn("trainers", Trainer, args.gpus_per_host)
    first = trainers.slice(hosts=0, gpus=0)
    address, port = first.find_rendezvous.call_one().get()
    world_size = args.num_hosts * args.gpus_per_host
    trainers.initialize.call(address, port, world_size).get()
    weights = [weight for _, weight in trainers.train_step.call().get().items()]
    trainers.clean_up.call().get()
    agree = max(weights) - min(weights) < 1e-5
    print(f"{len(weights)} ranks, weights {'agree' if agree else f'differ: {weights}'}")
    procs.stop().get()


if __name__ == "__main__":
    main()
