"""Environment variables, file names, exit codes and limits that several modules share.

This module has only constants. It has no logic and imports no other module of Windlass.
"""

from __future__ import annotations

VERSION = "0.1.0"
PROTOCOL_VERSION = 1

# Environment of a rank: torchrun's names, with torchrun's meaning.
RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
GROUP_RANK = "GROUP_RANK"
GROUP_WORLD_SIZE = "GROUP_WORLD_SIZE"
ROLE_NAME = "ROLE_NAME"
ROLE_RANK = "ROLE_RANK"
ROLE_WORLD_SIZE = "ROLE_WORLD_SIZE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
TORCHELASTIC_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID"
TORCHELASTIC_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
TORCHELASTIC_USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
TORCHELASTIC_SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
TORCH_NCCL_ASYNC_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
SET_PER_RANK = frozenset(
    {
        *(RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE),
        *(ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
        *(TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_ERROR_FILE, TORCHELASTIC_USE_AGENT_STORE),
    }
)
# Additional variables for commands. torchrun reads PET_* in place of missing flags.
PET_NNODES = "PET_NNODES"
PET_NODE_RANK = "PET_NODE_RANK"
PET_MASTER_ADDR = "PET_MASTER_ADDR"
PET_MASTER_PORT = "PET_MASTER_PORT"
PET_NPROC_PER_NODE = "PET_NPROC_PER_NODE"
PET_RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
NNODES = "NNODES"
NODE_RANK = "NODE_RANK"
NPROC_PER_NODE = "NPROC_PER_NODE"
OMP_NUM_THREADS = "OMP_NUM_THREADS"
OPENBLAS_NUM_THREADS = "OPENBLAS_NUM_THREADS"
GLOO_SOCKET_IFNAME = "GLOO_SOCKET_IFNAME"
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

# Windlass's own variables in a rank.
JOB_ID = "WINDLASS_JOB_ID"  # also identifies stray processes of Windlass
JOB_NAME = "WINDLASS_JOB_NAME"
NODE_NAME = "WINDLASS_NODE_NAME"
MONARCH_WORKERS = "WINDLASS_MONARCH_WORKERS"  # addresses of a mesh's hosts, separated by spaces
NODE_INDEXES = "WINDLASS_NODE_INDEXES"  # nodes of this attempt: their number, or a list
STEPS = "WINDLASS_STEPS"  # steps of a job's image, as JSON
VOLUME = "WINDLASS_VOLUME_"  # prefix of a volume's name, with its mount path as value
ATTEMPT = "WINDLASS_ATTEMPT"
GRACE = "WINDLASS_GRACE"  # seconds between SIGTERM and SIGKILL
OUT = "WINDLASS_OUT"  # the job's output folder, which may not exist yet
TRAIN = "WINDLASS_TRAIN"  # archive of the training library, if it is sent with the work

OUT_FOLDER = "out"  # default output folder, inside the job's folder
REPORT_SOCKET = "WINDLASS_REPORT_SOCKET"
STORE = "WINDLASS_STORE"  # path prefix of the rendezvous files for ranks of one machine

# Folder for snapshots of imports. Empty to keep none.
IMPORT_CACHE = "WINDLASS_IMPORT_CACHE"

# Modules do not read these variables during import, so a fork server may receive them later.
READ_LATE = ("WINDLASS_", "TORCHELASTIC_", "TORCH_NCCL_", "GLOO_", "NCCL_")

# Windlass's own variables for a client.
HOME = "WINDLASS_HOME"

# On Kubernetes: labels and annotations of every object of a job.
LABEL_JOB = "windlass.dev/job"
LABEL_NAME = "windlass.dev/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_APP = "app.kubernetes.io/name"
LABEL_MESH = "monarch.pytorch.org/mesh-name"
LABEL_FIRST_INDEX = "windlass.dev/first-index"  # set if the object's first pod is not node 0
LABEL_MAIN = "windlass.dev/main"  # UID of the main object, if another object owns the pods
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
ANNOTATION_VERSION = "windlass.dev/version"
ANNOTATION_SUBMIT = (
    "windlass.dev/submit"  # identifies the submission that created an incomplete object
)
ANNOTATION_WORK = "windlass.dev/work"
# Unix time until which a compute that has not started is kept.
ANNOTATION_KEEP_PLACE = "windlass.dev/keep-place-until"
ANNOTATION_SIZE = "windlass.dev/pod-size"  # resources of the pods of a separate workers object
ANNOTATION_TTL = "windlass.dev/ttl-s"  # set if the cluster does not delete ended objects itself
ANNOTATION_CONTAINER = "kubectl.kubernetes.io/default-container"  # set if it is not named CONTAINER

# Environment of a pod's agent.
POD_IP = "WINDLASS_POD_IP"
POD_NAME = "WINDLASS_POD_NAME"
POD_UID = "WINDLASS_POD_UID"
K8S_NODE = "WINDLASS_K8S_NODE"
NODE_FAILURES = "WINDLASS_NODE_FAILURES"  # number of earlier pods of this index that were lost
POD_HOSTS = "WINDLASS_POD_HOSTS"  # host names of pods, if they differ from POD_HOST
LEAD = "WINDLASS_LEAD"  # name of the lead's Service, which has an address before any pod runs
# The node's index, if no pod field has it. A number, or "from-lead" if the lead assigns it.
NODE_INDEX = "WINDLASS_NODE_INDEX"
INDEX_FROM_LEAD = "from-lead"

FIRST_INDEX = "WINDLASS_FIRST_INDEX"  # node index of an object's first pod (default: 0)
NUM_NODES = "WINDLASS_NUM_NODES"
# "1" if the containers of this pod restart whenever they exit.
ENV_STAYS_UP = "WINDLASS_STAYS_UP"

# "1" if the pods' controller reads their exit codes. "lead" if it also ends all pods when one exits with
# the failure code. In that case only node 0 exits with it, after all other nodes have ended.
ENV_TELLS_FAILURE = "WINDLASS_TELLS_FAILURE"
TELLS_BY_LEAD = "lead"

# Comma-separated names of variables that the pods' controller sets and that ranks must not see.
ENV_FORGET = "WINDLASS_FORGET"

# Default host name of node INDEX of a job inside the cluster.
POD_HOST = "{job_id}-{index}.{job_id}-headless"
# Object of all nodes but the first, if they have a separate one. It counts them from 0.
WORKERS = "{job_id}-workers"

# Paths and ports in a pod.
CONTAINER = "windlass"
SECRET_FOLDER = "/windlass/secret"  # noqa: S105
JOB_FOLDER = "/windlass/job"
CODE_FOLDER = "/windlass/job/code"
HOME_FOLDER = "/windlass/job/home"
PARTS_FOLDER = "/windlass/parts"  # pieces of the files in FILES_FOLDER
FILES_FOLDER = "/windlass/job/files"
POD_OUT = "/out"  # output folder of ranks, if pods mount a volume there
AGENT_FILE = "agent.pyz"
TRAIN_FILE = "train.pyz"
CLIENT_FILES = ("client.key", "client.crt")  # stored in the Secret, but mounted in no pod
AGENT_PORT = 29400
MONARCH_PORT = 26600  # port of Monarch's workers in pods, where Monarch's clients expect them
POD_MASTER_PORT = 29500  # rendezvous port of ranks in pods, if it is free

# Exit code of a pod's agent that was asked to stop: that of a process ended by SIGTERM.
EXIT_STOPPED = 143
# Exit code of an agent whose job failed, if `ENV_TELLS_FAILURE` is set. Otherwise it exits with 0.
EXIT_FAILED_WORK = 100

# Pattern of a DNS label, which a name in a cluster must match.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

# Seconds that an attempt or a call waits for all of its nodes if fewer are enough.
FEWER_AFTER_S = 30.0

# Exit codes of the command line.
EXIT_OK = 0
EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_ENGINE = 3
EXIT_INTERRUPTED = 130

# A job's folder.
PLAN_FILE = "plan.json"
PAYLOAD_FILE = "payload.pkl"
BUNDLE_FILE = "bundle.tar.gz"
WORLD_FILE = "world.json"
UNREAD_FILE = "unread-logs.json"  # pods whose log lines no client has requested yet
OMITTED_FILE = "omitted.json"  # files of a job that were lost with its pods
STATUS_FILE = "status.json"
SOCKETS_FILE = "sockets"  # path of the sockets of a job on this machine
LEAD_LOCK_FILE = "lead.lock"
LEAD_SOCKET = "lead.sock"

# A training run's folder.
METRICS_FILE = "metrics.jsonl"  # written by windlass.train, read by `windlass report`

# Reasons in a status. Programs match on them, never on the text.
REASON_WAITING_FOR_NODES = "WaitingForNodes"
REASON_ONE_WORLD = "OneWorld"  # an unreachable node may still run another attempt of the job
REASON_IMPORTING = "Importing"
REASON_RANKS_RUNNING = "RanksRunning"
REASON_RANK_FAILED = "RankFailed"
REASON_NODE_LOST = "NodeLost"
REASON_TIMEOUT = "Timeout"
REASON_CANCELLED = "Cancelled"
REASON_ALL_RETURNED = "AllRanksReturned"
REASON_START_FAILED = "StartFailed"
REASON_FORK_SERVER_DIED = "ForkServerDied"
REASON_FORK_UNSAFE = "ForkUnsafe"
REASON_CLUSTER_NODE_LOST = "ClusterNodeLost"  # for frameworks with processes on all nodes
REASON_CLUSTER_NOTE = "ClusterNote"
REASON_PORT = "PortElsewhere"  # a well-known port of node 0 has moved: `port N`, and its address
REASON_LOG_TRUNCATED = "LogTruncated"
REASON_RESULT_MISSING = "ResultMissing"
REASON_OUTCOME_UNKNOWN = "OutcomeUnknown"
REASON_LOSS_FORGOTTEN = "LossForgotten"
REASON_LEAD_SILENT = "LeadSilent"
REASON_UNSEEN = "Unseen"
REASON_ADOPTED = "Adopted"  # Windlass did not create the job
REASON_KEYS_EXPIRED = "KeysExpired"
REASON_API_AWAY = "ApiServerAway"
REASON_API_BACK = "ApiServerBack"
REASON_CANNOT_KEEP = "CannotKeep"
REASON_KEEPS_AGAIN = "KeepsAgain"
REASON_NOT_FINITE = "MetricNotFinite"
REASON_READY = "Ready"
REASON_QUEUED = "Queued"
REASON_INACTIVE = "Inactive"

# A frame with a part of a large payload. It is sent before the frame that it belongs to.
PART_FRAME = "part"

# Limits.
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 256 << 20
MAX_DATAGRAM_BYTES = 60_000
MAX_ATTEMPTS = 1_000_000_000
MAX_RANKS = 100_000  # per job. A status with more is rejected.
PART_BYTES = 4 << 20
# Total for all ranks and attempts of a job, so that endless output cannot fill the disk.
MAX_LOG_BYTES = 8 << 30
MIN_FREE_BYTES = 1 << 30  # logs stop when their disk has less free space, or less than 5 %
MAX_LOG_RECORD_BYTES = 16 << 10
