"""A job's certificates: a CA for this one job, and one certificate each for its nodes and its client.

Pure but for the keys it draws: the clock is an argument, nothing is written. The CA's private key is
dropped as soon as both are signed, so nobody can ever add a third. Called on the client only; nodes
read the files with `agent.link.tls`. The only place that knows the cryptography package, and it is imported
on use: most commands never need it.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from windlass.errors import SpecError
from windlass.wire import identity

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509.oid import ObjectIdentifier

_BACKDATED_S = 86_400.0  # a node whose clock is behind must not find them "not yet valid"


def make_certificates(job_id: str, *, now_s: float, valid_s: float) -> dict[str, bytes]:
    """PEM files by name: ca.crt, node.crt, node.key, client.crt, client.key."""
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
            hint="give the job a time limit above zero, or none",
        )
    try:
        # whole seconds are all that a certificate holds
        first = datetime.fromtimestamp(int(now_s - _BACKDATED_S), tz=timezone.utc)
        last = datetime.fromtimestamp(int(now_s + valid_s), tz=timezone.utc)
    except (OverflowError, ValueError, OSError) as error:
        raise SpecError(
            f"certificates cannot be valid for {valid_s:g} s: that is beyond the calendar",
            hint="give the job a shorter time limit",
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
