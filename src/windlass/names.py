"""Every environment variable, file name, exit code and limit that more than one file must agree on.

Constants only: no logic, no imports of ours.
"""

from __future__ import annotations

VERSION = "0.1.0"
PROTOCOL_VERSION = 1

# What a rank finds in its environment: torchrun's names, with torchrun's meaning.
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
# What a command finds besides: torchrun takes PET_* for the flags it was not given.
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

# Our own variables in a rank.
JOB_ID = "WINDLASS_JOB_ID"  # also how a stray process is recognised as one of ours
JOB_NAME = "WINDLASS_JOB_NAME"
NODE_NAME = "WINDLASS_NODE_NAME"
MONARCH_WORKERS = "WINDLASS_MONARCH_WORKERS"  # the addresses of a mesh's hosts, with blanks between
NODE_INDEXES = "WINDLASS_NODE_INDEXES"  # the nodes of this attempt: how many, or which
STEPS = "WINDLASS_STEPS"  # of a job's image, as JSON
VOLUME = "WINDLASS_VOLUME_"  # and the volume's name: where it is mounted
ATTEMPT = "WINDLASS_ATTEMPT"
GRACE = "WINDLASS_GRACE"  # seconds between SIGTERM and SIGKILL
OUT = "WINDLASS_OUT"  # the job's output folder, which need not be there yet
TRAIN = "WINDLASS_TRAIN"  # the archive of the training library, where it travels with the work
OUT_FOLDER = "out"  # in the job's folder, where nothing else is said
REPORT_SOCKET = "WINDLASS_REPORT_SOCKET"
STORE = "WINDLASS_STORE"  # how the files begin in which ranks of one machine meet
IMPORT_CACHE = "WINDLASS_IMPORT_CACHE"  # a folder for snapshots of imports; empty: none are kept

# Variables that nothing reads while it is being imported: a fork server may learn them later.
READ_LATE = ("WINDLASS_", "TORCHELASTIC_", "TORCH_NCCL_", "GLOO_", "NCCL_")

# Our own variables for a client.
HOME = "WINDLASS_HOME"

# On Kubernetes: labels and annotations of every object of a job.
LABEL_JOB = "windlass.dev/job"
LABEL_NAME = "windlass.dev/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_APP = "app.kubernetes.io/name"
LABEL_MESH = "monarch.pytorch.org/mesh-name"
LABEL_FIRST_INDEX = "windlass.dev/first-index"  # of pods that their object counts from another node
LABEL_MAIN = "windlass.dev/main"  # the uid of the main object, where pods are another one's
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
ANNOTATION_VERSION = "windlass.dev/version"
ANNOTATION_SUBMIT = "windlass.dev/submit"  # one submit's own mark: whose half-made objects?
ANNOTATION_WORK = "windlass.dev/work"
ANNOTATION_KEEP_PLACE = (
    "windlass.dev/keep-place-until"  # of a compute that never started; Unix time
)
ANNOTATION_SIZE = "windlass.dev/pod-size"  # what pods of such another object have
ANNOTATION_TTL = "windlass.dev/ttl-s"  # where the cluster removes no ended object of the kind
ANNOTATION_CONTAINER = "kubectl.kubernetes.io/default-container"  # where it is not called CONTAINER

# What a pod's agent finds in its environment.
POD_IP = "WINDLASS_POD_IP"
POD_NAME = "WINDLASS_POD_NAME"
POD_UID = "WINDLASS_POD_UID"
K8S_NODE = "WINDLASS_K8S_NODE"
NODE_FAILURES = "WINDLASS_NODE_FAILURES"  # how many pods of this index were lost before
POD_HOSTS = "WINDLASS_POD_HOSTS"  # what pods are called, where it is not POD_HOST
LEAD = "WINDLASS_LEAD"  # the Service that has an address before any pod runs
NODE_INDEX = "WINDLASS_NODE_INDEX"  # where nothing else tells it; a number, or:
INDEX_FROM_LEAD = "from-lead"  # it has none of its own: the lead gives it one
FIRST_INDEX = "WINDLASS_FIRST_INDEX"  # what an object's own count of its pods starts from; 0
NUM_NODES = "WINDLASS_NUM_NODES"
ENV_STAYS_UP = (
    "WINDLASS_STAYS_UP"  # "1": containers of this pod are started again whenever they exit
)

ENV_TELLS_FAILURE = (
    "WINDLASS_TELLS_FAILURE"  # "1": what makes these pods reads their exit codes, or:
)
TELLS_BY_LEAD = (
    "lead"  # it ends all pods at the first such code: node 0 gives it, when all others are gone
)

ENV_FORGET = "WINDLASS_FORGET"  # names, by commas, that what makes the pods sets, and no rank sees

# What node INDEX of a job is called inside the cluster, unless its pods are told otherwise.
POD_HOST = "{job_id}-{index}.{job_id}-headless"
# And where nodes but the first have an object of their own, which counts them from 0.
WORKERS = "{job_id}-workers"

# Places in a pod.
CONTAINER = "windlass"
SECRET_FOLDER = "/windlass/secret"  # noqa: S105
JOB_FOLDER = "/windlass/job"
CODE_FOLDER = "/windlass/job/code"
HOME_FOLDER = "/windlass/job/home"
PARTS_FOLDER = "/windlass/parts"  # pieces of the files in:
FILES_FOLDER = "/windlass/job/files"
POD_OUT = "/out"  # where pods have it mounted, ranks write there
AGENT_FILE = "agent.pyz"
TRAIN_FILE = "train.pyz"
CLIENT_FILES = ("client.key", "client.crt")  # in the Secret, but in no pod
AGENT_PORT = 29400
MONARCH_PORT = 26600  # of Monarch's workers in pods, where its own clients look for them
POD_MASTER_PORT = 29500  # where ranks meet in pods, if it is free

# What a pod's agent exits with when it is told to go: as a process that SIGTERM ended.
EXIT_TOLD_TO_STOP = 143
# And when its job has ended and did not succeed, where that is to be told (`ENV_TELLS_FAILURE`); else with 0.
EXIT_FAILED_WORK = 100

# What any one name in a cluster is made of.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

# How long an attempt, or a call, waits for all of its nodes where fewer would do.
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
UNREAD_FILE = "unread-logs.json"  # pods whose lines nobody has asked for yet
OMITTED_FILE = "omitted.json"  # what a job left that did not outlive its pods
STATUS_FILE = "status.json"
SOCKETS_FILE = "sockets"  # where those of a job on this machine are
LEAD_LOCK_FILE = "lead.lock"
LEAD_SOCKET = "lead.sock"

# A training run's folder.
METRICS_FILE = "metrics.jsonl"  # written by windlass.train, read by `windlass report`

# Reasons in a status: what programs match on, never the text.
REASON_WAITING_FOR_NODES = "WaitingForNodes"
REASON_ONE_WORLD = "OneWorld"  # another attempt of the job might be running out of sight
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
REASON_CLUSTER_NODE_LOST = "ClusterNodeLost"  # of a framework that has processes on all nodes
REASON_CLUSTER_NOTE = "ClusterNote"
REASON_PORT = "PortElsewhere"  # a usual port of node 0 is another one: `port N`, and its address
REASON_LOG_TRUNCATED = "LogTruncated"
REASON_RESULT_MISSING = "ResultMissing"
REASON_OUTCOME_UNKNOWN = "OutcomeUnknown"
REASON_LOSS_FORGOTTEN = "LossForgotten"
REASON_LEAD_SILENT = "LeadSilent"
REASON_UNSEEN = "Unseen"
REASON_ADOPTED = "Adopted"  # others made it
REASON_KEYS_EXPIRED = "KeysExpired"
REASON_API_AWAY = "ApiServerAway"
REASON_API_BACK = "ApiServerBack"
REASON_CANNOT_KEEP = "CannotKeep"
REASON_KEEPS_AGAIN = "KeepsAgain"
REASON_NOT_FINITE = "MetricNotFinite"
REASON_READY = "Ready"
REASON_QUEUED = "Queued"
REASON_INACTIVE = "Inactive"

# A frame with a part of a large payload, which goes ahead of the frame that it belongs to.
PART_FRAME = "part"

# Limits.
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 256 << 20
MAX_DATAGRAM_BYTES = 60_000
MAX_ATTEMPTS = 1_000_000_000
MAX_RANKS = 100_000  # of one job; a status that speaks of more is not believed
PART_BYTES = 4 << 20
MAX_LOG_BYTES = (
    8 << 30
)  # of all ranks of a job, in all attempts; one that prints for ever fills no disk
MIN_FREE_BYTES = 1 << 30  # no log is written when its disk has less free, or less than 5 %
MAX_LOG_RECORD_BYTES = 16 << 10
