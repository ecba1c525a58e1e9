# train_function.py

def train_fashion_mnist():
    """
    A simple distributed training function for the FashionMNIST dataset.
    """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision import datasets, transforms

    # 1. Initialize the distributed environment
    # Kubeflow Trainer automatically sets the necessary environment variables.
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    device_id = int(os.environ.get("LOCAL_RANK", 0))
    device = f"cuda:{device_id}" if torch.cuda.is_available() else "cpu"

    print(f"Starting training on rank {rank} of {world_size} on device {device}.")

    # 2. Prepare the dataset
    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.5,), (0.5,))
    ])
    dataset = datasets.FashionMNIST(
        root="./data",
        train=True,
        download=True,
        transform=transform
    )
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    train_loader = DataLoader(dataset, batch_size=64, sampler=sampler)

    # 3. Define the model and wrap with DistributedDataParallel
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(28 * 28, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10)
    ).to(device)

    if torch.cuda.is_available():
        model = DistributedDataParallel(model, device_ids=[device_id])
    else:
        model = DistributedDataParallel(model)


    # 4. Define loss function and optimizer
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    # 5. Run the training loop
    model.train()
    for epoch in range(3): # 3 epochs for demonstration
        sampler.set_epoch(epoch)
        for batch_idx, (data, target) in enumerate(train_loader):
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()

        # Only print from the master process (rank 0)
        if rank == 0:
            print(f"Epoch {epoch+1}/{3} | Loss: {loss.item():.4f}")

    # 6. Clean up the distributed environment
    dist.destroy_process_group()

    if rank == 0:
        print("Training complete!")
