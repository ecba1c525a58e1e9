"""TorchTrainer: its settings, its parts, one step, what it logs and saves, and who listens."""
