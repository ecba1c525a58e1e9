"""Script with transformers' Trainer as it runs under torchrun: a tiny model, generated data, gloo."""

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(torch.utils.data.Dataset):
    """Texts that count. Each token is the previous one plus one."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(16) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
)  # fmt: skip
args = TrainingArguments(
    output_dir="/tmp/out",
    max_steps=20,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    logging_steps=20,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    ddp_backend="gloo",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Counting())
loss = trainer.train().training_loss
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss:.2f}\n", end="", flush=True)
assert loss < 3.4, loss  # ln(32) is 3.47
dist.destroy_process_group()
