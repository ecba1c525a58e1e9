"""TorchTrainer: its settings, parts, steps, logs and saves, and its callbacks."""
