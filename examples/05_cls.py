"""cls: an object on every rank that keeps its model, process group and step count between calls.

    python examples/05_cls.py

Runs on a cluster if your kubeconfig has one, with torch from the image in WINDLASS_IMAGE. Otherwise it runs
on this machine.
"""

import windlass as wl


class Trainer:
    """Model of a line, fitted to points by all ranks together."""

    def __init__(self, lr: float) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")  # only once, because the ranks stay alive
        torch.manual_seed(dist.get_rank())
        self.model = DistributedDataParallel(torch.nn.Linear(1, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.num_steps = 0

    def fit(self, num_steps: int) -> float:
        """Continue training, and return the loss of the last step."""
        import torch

        for _ in range(num_steps):
            points = torch.randn(64, 1)
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(points), 3 * points + 1)
            loss.backward()
            self.optimizer.step()
        self.num_steps += num_steps
        return loss.item()

    def line(self) -> str:
        weight, bias = (round(p.item(), 2) for p in self.model.parameters())
        return f"y = {weight} x + {bias} after {self.num_steps} steps"


def main() -> None:
    compute = wl.Compute(name="example-cls", inactivity_ttl="10m")
    remote = wl.cls(Trainer, init_args={"lr": 0.1}).to(compute).distribute("pytorch", workers=2)
    for _ in range(3):
        remote.fit(20)
        print(remote.line())  # one entry per rank, all with the same weights
    print("of rank 0 alone:", remote.line(collect="head"))
    compute.teardown()


if __name__ == "__main__":
    main()
