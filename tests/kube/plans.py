"""Plans whose nodes are pods, from the simplest to one that uses every option."""

from __future__ import annotations

from typing import Any

from windlass.kube.objects.manifests import JobFiles
from windlass.plan.plan import Facts, Plan, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.pod_spec import PodSpec, read_toleration
from windlass.spec.storage import read_secret, read_volume
from windlass.spec.work import Script

IMAGE = "localhost/torch:2.13.0-cpu"
FILES = JobFiles(
    own={
        "plan.json": b"{}",
        "ca.crt": b"ca",
        "node.crt": b"crt",
        "node.key": b"key",
        "client.crt": b"crt",
        "client.key": b"key",
    },
    parts=({"agent.pyz.0": b"P"}, {"agent.pyz.1": b"K"}),
)


def make_pod_plan(job_id: str = "train-ab2cd", **asked: Any) -> Plan:
    """Return a plan for pods. Keywords are fields of the job or of its pod."""
    in_job = {name: asked.pop(name) for name in list(asked) if name in JobSpec.__slots__}
    pod = PodSpec(**{"image": IMAGE, **asked})
    fields = {"work": Script(path="train.py", args=("--lr", "0.1")), "engine": "kubernetes"}
    spec = JobSpec(**{**fields, **in_job}, pod=pod)
    facts = Facts(environ={}, replaces_nodes=True, master_port=29500)
    return make_plan(spec, job_id=job_id, now_s=0.0, facts=facts)


PLANS = {
    "one": make_pod_plan(),
    "two": make_pod_plan(nodes=2, procs=2, cpus="2", memory="1Gi", timeout_s=60.0, grace_s=2.5),
    "all": make_pod_plan(
        name="Großer Lauf",
        nodes=2,
        gpus=8,
        gpu_type="H100|A100",
        cpus="500m",
        memory="1Gi",
        ephemeral_storage="2Gi",
        requests={"cpus": "250m", "memory": "512Mi"},
        shm="256Mi",
        node_selector={"pool": "train", "zone": "a|b"},
        tolerations=tuple(read_toleration(text) for text in ("train=yes:NoSchedule", "spot")),
        spread="hard",
        pack="topology.kubernetes.io/zone",
        priority_class="system-cluster-critical",
        service_account="trainer",
        pull_secrets=("registry",),
        secrets=tuple(map(read_secret, ("HF_TOKEN=hf-token:token", "more", "ssh:/keys"))),
        volumes=tuple(
            map(
                read_volume,
                (
                    "datasets:/data:ro",
                    "new:1Gi:/out",
                    "new:1Gi:/mnt/a/b:RWO:shared-disk",
                    "emptydir:1Gi:/mnt/a-b",
                ),
            )
        ),
        annotations={"example.com/note": "any text"},
        labels={"team": "red"},
        queue="training",
        ttl_s=60.0,
        node_restarts=5,
        patch={
            "metadata": {"annotations": {"patched": "yes"}},
            "spec": {
                "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
                "containers": [{"name": "windlass", "env": [{"name": "A", "value": "b"}]}],
            },
        },
    ),
    "image-user": make_pod_plan(
        run_as=None, ttl_s=None, spread="none", nodes=3, python="python3.12"
    ),
}
