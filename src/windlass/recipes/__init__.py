"""Two ready-made training programs, and the language model that one of them uses.

    windlass run -m windlass.recipes.train             # a smoke test: DDP on synthetic data, done in seconds
    windlass run -m windlass.recipes.train_framework   # fine-tuning a causal language model

Each is a program, and an example to copy. They use only the public API of `windlass.train`, and no other
module imports them.
"""
