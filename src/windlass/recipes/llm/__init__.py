"""The language model that `windlass.recipes.train_framework` fine-tunes: model, kernels, data, memory."""
