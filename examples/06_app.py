"""An app: the torchrun line you have, once on every node. It forms one world by itself.

    windlass deploy examples/06_app.py             # starts it and returns: windlass logs ddp-training -f
    python examples/06_app.py                      # starts it, shows what it prints, and how it ended

On a cluster if your kubeconfig names one, else on this machine (WINDLASS_ENGINE=local says so). With 8 GPUs
a node it would be: torchrun --nnodes=4 --nproc_per_node=8 train.py, gpus=8 and replicas=4.
"""

import windlass as wl

app = wl.app(
    name="ddp-training",
    cli_command="torchrun --nnodes=2 --nproc_per_node=2 examples/01_ddp.py",
    replicas=2,
)

if __name__ == "__main__":
    app.deploy(replace=True)
    for line in app.logs(follow=True):
        if line.stream == "stdout":
            print(f"[node {line.node}] {line.text}")
    print(f"it {app.status().phase.value}")
