"""Unseeded random streams, the same ones seeded, and the state of what Python itself seeds."""

import json
import os
import random
import secrets
import tempfile
import uuid

rank = os.environ.get("RANK", "0")
unseeded = {
    "random": random.random(),
    "random_instance": random.Random().random(),
    "system_random": random.SystemRandom().random(),
    "secrets": secrets.token_hex(8),
    "urandom": os.urandom(8).hex(),
    "uuid4": str(uuid.uuid4()),
    "uuid1": str(uuid.uuid1()),
    "temporary_name": os.path.basename(tempfile.mkdtemp(dir=".")),
    "hash_of_text": hash("text"),
    "hash_of_bytes": hash(b"bytes"),
}
random.seed(7)
seeded = {"random": random.random(), "shuffled": random.sample(range(100), 10)}
unseeded["order_of_a_set"] = list({f"name {number}" for number in range(100)})
with open(f"randoms-{rank}.json", "w") as file:
    json.dump({"unseeded": unseeded, "seeded": seeded}, file)
