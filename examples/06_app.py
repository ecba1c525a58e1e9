"""An app: runs your torchrun command once on every node. Together the nodes form one world.

    windlass deploy examples/06_app.py             # starts it and returns: windlass logs ddp-training -f
    python examples/06_app.py                      # starts it, prints its output, and how it ended

Runs on a cluster if your kubeconfig has one, and otherwise on this machine. WINDLASS_ENGINE=local always uses
this machine. For 8 GPUs per node use: torchrun --nnodes=4 --nproc_per_node=8 train.py, gpus=8 and replicas=4.
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
    print(f"the app {app.status().phase.value}")
