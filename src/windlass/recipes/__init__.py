"""Two trainings that people run on day one, and the language model that one of them uses.

    windlass run -m windlass.recipes.train             # a smoke test: DDP on synthetic data, done in seconds
    windlass run -m windlass.recipes.train_framework   # fine-tuning a causal language model

Each is a program and an example to copy from. They use `windlass.train` as anybody
would; nothing imports them.
"""
