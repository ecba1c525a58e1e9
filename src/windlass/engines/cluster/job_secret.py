"""Secrets of a job on a cluster: its certificates, its files, and their copies in a local folder.

Each job has its own certificate authority (CA), one certificate for its nodes and one for its clients.
Other clients read them from the job's Secret. The machine that submitted a job keeps the CA in the
job's folder. If the Secret has another CA, it was replaced and is not used. The folder also records
the cluster and the namespace. `cryptography` is imported only to create certificates.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import names
from windlass.engines.archives import (
    build_archive,
    build_train_archive,
    local_archive,
    read_train_archive,
)
from windlass.engines.cluster.lead_sync import keeping
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.protocol import NO_HIDDEN, JobRef
from windlass.errors import EngineError, JobNotFound, KeysReplaced, SpecError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import NotFound
from windlass.kube.objects.fields import Object, labels_of
from windlass.kube.objects.kinds import SECRETS
from windlass.kube.objects.manifests import (
    HIDDEN_KEY,
    MAX_APPLIED_BYTES,
    MAX_SECRET_BYTES,
    JobFiles,
    cut_files,
)
from windlass.kube.objects.naming import read_job_id
from windlass.plan.plan import Plan, read_plan, render_plan
from windlass.trusted import make_own
from windlass.wire import identity
from windlass.wire.identity import CA_CRT
from windlass.wire.job_folder import JobFolder, write_atomically

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509.oid import ObjectIdentifier


_BACKDATED_S = 86_400.0  # a slow clock would reject new certificates as "not yet valid"
_CLUSTER_FILE = "where.json"
MAX_INPUT_BYTES = 750_000  # limit for payload and bundle in a Secret. Larger ones are uploaded.
_QUEUE_S = 30 * 86400.0  # added to the validity, because a job may wait for its pods
_NO_LIMIT_S = 10 * 365 * 86400.0  # jobs without a time limit: their keys last as long as the Secret


def make_certificates(job_id: str, *, now_s: float, valid_s: float) -> dict[str, bytes]:
    """Return PEM files by name: ca.crt, node.crt, node.key, client.crt, client.key."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    names = {role: identity.role_uri(job_id, role) for role in identity.ROLES}
    span = _span(now_s, valid_s)
    ca_key, node_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _sign_ca(job_id, ca_key, span)
    node = _sign(
        *(job_id, node_key, ca, ca_key),
        uri=names[identity.NODE],
        dns=identity.server_name(job_id),
        uses=[Use.SERVER_AUTH, Use.CLIENT_AUTH],
    )
    client = _sign(
        *(job_id, client_key, ca, ca_key), uri=names[identity.CLIENT], uses=[Use.CLIENT_AUTH]
    )
    return {
        identity.CA_CRT: _pem(ca),
        identity.NODE_CRT: _pem(node),
        identity.NODE_KEY: _key_pem(node_key),
        identity.CLIENT_CRT: _pem(client),
        identity.CLIENT_KEY: _key_pem(client_key),
    }


def _span(now_s: float, valid_s: float) -> tuple[datetime, datetime]:
    if not valid_s > 0:
        raise SpecError(
            f"certificates cannot be valid for {valid_s:g} s",
            hint="set a time limit above zero, or none",
        )
    try:
        # Certificates store whole seconds.
        first = datetime.fromtimestamp(int(now_s - _BACKDATED_S), tz=timezone.utc)
        last = datetime.fromtimestamp(int(now_s + valid_s), tz=timezone.utc)
    except (OverflowError, ValueError, OSError) as error:
        raise SpecError(
            f"certificates cannot be valid for {valid_s:g} s: the end date is out of range",
            hint="set a shorter time limit",
        ) from error
    return first, last


def _sign_ca(
    job_id: str, key: EllipticCurvePrivateKey, span: tuple[datetime, datetime]
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _name(job_id, "windlass CA")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _start(name, name, key, span)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    return builder.sign(key, hashes.SHA256())


def _sign(
    job_id: str,
    key: EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: EllipticCurvePrivateKey,
    *,
    uri: str,
    uses: list[ObjectIdentifier],
    dns: str | None = None,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    role = uri.rpartition("/")[2]
    known_as: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
    if dns is not None:
        known_as.append(x509.DNSName(dns))
    span = (ca.not_valid_before_utc, ca.not_valid_after_utc)
    authority = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _start(_name(job_id, f"windlass {role}"), ca.subject, key, span)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority),
            critical=False,
        )
    )
    return builder.sign(ca_key, hashes.SHA256())


def _start(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    span: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
    )


def _name(job_id: str, what: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, job_id),
            x509.NameAttribute(NameOID.COMMON_NAME, what),
        ]
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_cluster_folder(
    home: Path, api: Api, plan: Plan, payload: bytes | None, bundle: Path | None
) -> JobFolder:
    """Create a job's folder below `home` with its inputs. The plan is last, since it makes it a job."""
    folder = JobFolder(home / plan.job_id)
    try:
        make_own(folder.path, below=home.parent, is_new=True)
        if payload is not None:
            folder.payload.write_bytes(payload)
        if bundle is not None:
            os.link(bundle, folder.bundle)
        record_cluster(api, folder)
        write_atomically(folder.plan, render_plan(plan).encode())
    except FileExistsError as error:  # another process was faster
        raise EngineError(
            f"the job {plan.job_id} already exists", hint="submit the job again to get a new ID"
        ) from error
    except OSError as error:
        raise EngineError(
            f"cannot store the job in {folder.path}: {error.strerror or error}",
            hint=f"make it writable, or set {names.HOME} to another folder",
        ) from error
    return folder


def record_cluster(api: Api, folder: JobFolder) -> None:
    """Record the context and the namespace of a job in its folder."""
    place = {"context": api.context, "namespace": api.namespace}
    (folder.path / _CLUSTER_FILE).write_text(json.dumps(place))


def read_cluster(home: Path, job_id: str) -> dict[str, str]:
    """Return the context and the namespace of a job, both empty if it has no folder here."""
    try:
        place: dict[str, str] = json.loads((home / job_id / _CLUSTER_FILE).read_text())
    except (OSError, ValueError):
        return {"context": "", "namespace": ""}
    return place


def list_folders(home: Path) -> list[str]:
    """Return the ids of jobs that have a folder here, newest first."""
    places = sorted(home.glob(f"*/{_CLUSTER_FILE}"), key=lambda path: -path.stat().st_mtime)
    return [path.parent.name for path in places]


class NotOurs(EngineError):
    """Raised for an object of a dialect's kind that Windlass did not create."""


class BrokenSubmit(EngineError):
    """Raised for a job that never starts, because its submit was interrupted."""

    def __init__(self, message: str, *, hint: str, body: Object) -> None:
        super().__init__(message, hint=hint)
        self.body = body  # the main object


def make_files(
    plan: Plan,
    payload: bytes | None,
    bundle: Path | None,
    *,
    is_export: bool = False,
    hidden: Mapping[str, str] = NO_HIDDEN,
) -> JobFiles:
    """Return the contents of the Secrets: plan, agent, training library, and inputs if they are small.

    An export has no byte code, and its Secrets are small enough for the annotation of `kubectl apply`.
    """
    own = {
        names.PLAN_FILE: render_plan(plan).encode(),
        **{f"{HIDDEN_KEY}{name}": value.encode() for name, value in hidden.items()},
    }
    large = {names.AGENT_FILE: build_archive() if is_export else _read_agent()}
    if names.TRAIN in plan.env:
        large[names.TRAIN_FILE] = build_train_archive() if is_export else read_train_archive()
    room = MAX_INPUT_BYTES
    if payload is not None and len(payload) <= room:
        large[names.PAYLOAD_FILE] = payload
        room -= len(payload)
    if bundle is not None and bundle.stat().st_size <= room:
        large[names.BUNDLE_FILE] = bundle.read_bytes()
    most_bytes = MAX_APPLIED_BYTES if is_export else MAX_SECRET_BYTES
    return JobFiles(own=own, parts=cut_files(large, most_bytes))


def _read_agent() -> bytes:
    """Return the agent with byte code, so that pods with this Python version need not compile it."""
    return Path(local_archive()).read_bytes()


def make_job_certificates(plan: Plan) -> dict[str, bytes]:
    """Return certificates from a new CA for this job. The key of the CA is not kept."""
    valid_s = _NO_LIMIT_S if plan.timeout_s is None else _QUEUE_S + plan.timeout_s
    return make_certificates(plan.job_id, now_s=plan.created_at_s, valid_s=valid_s)


def pin(folder: JobFolder, certificates: Mapping[str, bytes]) -> None:
    """Keep the CA of a job that is submitted from here, to recognize the job later."""
    with keeping(folder):
        write_atomically(folder.path / CA_CRT, certificates[CA_CRT])


def is_pinned(folder: JobFolder) -> bool:
    """Return whether the job was submitted from here."""
    return (folder.path / CA_CRT).exists()


def fetch(
    api: Api, dialect: Dialect, ref: JobRef, folder: JobFolder
) -> tuple[Plan, Mapping[str, bytes]]:
    """Return the plan and the certificates of a job, whether it was submitted here or elsewhere."""
    try:
        data = api.get(SECRETS, ref.job_id).get("data") or {}
    except NotFound:
        raise _not_found(api, dialect, ref) from None
    files = {
        name: base64.b64decode(content)
        for name, content in data.items()
        if not name.startswith(HIDDEN_KEY)  # only for pods
    }
    if names.PLAN_FILE not in files:
        raise _not_found(api, dialect, ref)
    if is_pinned(folder) and (folder.path / CA_CRT).read_bytes() != files.get(CA_CRT):
        raise KeysReplaced(
            f"the keys of {ref.job_id} differ from those that it was submitted with on this machine",
            hint=f"its Secret was replaced (see `kubectl describe secret {ref.job_id}`); "
            "do not use the job, and submit it again",
        )
    return read_plan(files[names.PLAN_FILE].decode()), files


def _not_found(api: Api, dialect: Dialect, ref: JobRef) -> EngineError:
    kind = dialect.kind
    try:
        body = api.get(kind, dialect.make_name(ref.job_id))
    except NotFound:
        body = {}
    # Two job ids can map to the same object name.
    if not body or read_job_id(body) != ref.job_id:
        return JobNotFound(
            f"job {ref.job_id!r} not found in namespace {api.namespace}",
            hint=f"run `windlass ls -e {ref.engine}` to list the jobs",
        )
    if names.LABEL_JOB not in labels_of(body):
        return NotOurs(
            f"the {kind.name} {ref.job_id} was not created by Windlass: it has no plan and no result",
            hint=f"inspect it with `kubectl describe {kind.plural} {ref.job_id}`",
        )
    return BrokenSubmit(
        f"the submission of {ref.job_id} was interrupted before it was complete",
        hint=f"run `windlass rm {ref.job_id}` to remove its objects, then submit it again",
        body=body,
    )
