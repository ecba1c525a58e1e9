"""TorchTrainer: options, setup, training steps, logging, checkpoints and callbacks."""
