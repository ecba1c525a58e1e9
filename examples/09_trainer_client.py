"""Fashion-MNIST with the calls of Kubeflow's SDK, as a TrainJob if the cluster has Kubeflow Trainer.

    python examples/09_trainer_client.py

The images are generated, so nothing is downloaded. Replace them with torchvision's dataset for real ones.
"""

from windlass.trainer import TrainerClient

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "bag", "boot")


def make_images(num_images: int):
    """Return images of Fashion-MNIST's size. Each class has its own pattern, with noise."""
    import torch

    patterns = torch.rand(len(CLASSES), 1, 28, 28, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(num_images) % len(CLASSES)
    noise = torch.randn(num_images, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(patterns[labels] + noise, labels)


def train(parameters):
    """Train on every worker. Globals and other functions of this file are sent with it."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    dataset = make_images(2048)
    sampler = torch.utils.data.DistributedSampler(dataset)
    layers = torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, len(CLASSES))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), *layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters["lr"])
    for epoch in range(parameters["epochs"]):
        sampler.set_epoch(epoch)
        for images, labels in torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f} on rank {dist.get_rank()}")
    images, labels = make_images(200).tensors
    guesses = model.module(images).argmax(1)
    dist.destroy_process_group()
    return (guesses == labels).float().mean().item(), CLASSES[guesses[0]]


if __name__ == "__main__":
    client = TrainerClient(image="docker.io/pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime")
    settings = {"parameters": {"lr": 0.1, "epochs": 3}, "resources_per_worker": {"cpu": "1"}}
    job = client.create_job(name="fashion-mnist", train_func=train, num_workers=2, **settings)
    client.stream_logs(job.name)
    (accuracy, first), *_ = job.results()
    print(f"{client.get_job_status(job.name)}: {accuracy:.0%} accuracy, the first is a {first}")
    client.delete_job(job.name)
