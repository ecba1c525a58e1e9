"""A job's certificates: their roles, their validity, and that no further ones can be issued."""

from __future__ import annotations

import itertools
import ssl
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from windlass.engines.cluster.job_secret import make_certificates
from windlass.errors import SpecError

NOW_S = 1_800_000_000.25
DAY_S = 86_400


def make(job_id="train-ab12c", *, now_s=NOW_S, valid_s=30 * DAY_S):
    return make_certificates(job_id, now_s=now_s, valid_s=valid_s)


def load(files, name):
    return x509.load_pem_x509_certificate(files[name])


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def test_exactly_the_expected_files_are_made():
    assert sorted(make()) == ["ca.crt", "client.crt", "client.key", "node.crt", "node.key"]


def test_key_of_the_ca_is_in_no_file():
    files = make()
    ca = load(files, "ca.crt").public_key()
    keys = [load_pem_private_key(files[f"{role}.key"], None) for role in ("node", "client")]
    assert all(key.public_key() != ca for key in keys)
    for role, key in zip(("node", "client"), keys, strict=True):
        assert load(files, f"{role}.crt").public_key() == key.public_key()


def test_each_job_has_its_own_keys():
    first, second = make(), make()
    assert all(first[name] != second[name] for name in first)


@pytest.mark.parametrize("name", ["ca.crt", "node.crt", "client.crt"])
def test_times(name):
    certificate = load(make(), name)
    assert certificate.not_valid_before_utc.timestamp() == int(NOW_S - DAY_S)
    assert certificate.not_valid_after_utc.timestamp() == int(NOW_S + 30 * DAY_S)


def test_ca_cannot_sign_other_cas():
    files = make()
    ca = load(files, "ca.crt")
    limits = extension(ca, x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    for role in ("node", "client"):
        leaf = load(files, f"{role}.crt")
        leaf.verify_directly_issued_by(ca)
        assert extension(leaf, x509.BasicConstraints).value.ca is False


def test_roles():
    files = make()
    node, client = (load(files, f"{role}.crt") for role in ("node", "client"))
    names = {
        certificate: [
            name.value for name in extension(certificate, x509.SubjectAlternativeName).value
        ]
        for certificate in (node, client)
    }
    assert names[node] == ["windlass://train-ab12c/node", "node.train-ab12c.windlass.internal"]
    assert names[client] == ["windlass://train-ab12c/client"]
    uses = ExtendedKeyUsageOID
    assert set(extension(node, x509.ExtendedKeyUsage).value) == {uses.SERVER_AUTH, uses.CLIENT_AUTH}
    assert set(extension(client, x509.ExtendedKeyUsage).value) == {uses.CLIENT_AUTH}


def test_key_identifiers_match_the_ca():
    files = make()
    ca = extension(load(files, "ca.crt"), x509.SubjectKeyIdentifier).value
    for name in ("ca.crt", "node.crt", "client.crt"):
        authority = extension(load(files, name), x509.AuthorityKeyIdentifier).value
        assert authority.key_identifier == ca.digest


@pytest.mark.parametrize("job_id", ["a", "a" * 63, "1-2"])
def test_every_valid_job_id_works(job_id, tmp_path):
    for name, data in make(job_id).items():
        (tmp_path / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.crt", tmp_path / "node.key")
    context.load_verify_locations(tmp_path / "ca.crt")
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("job_id", ["", "a" * 64, "A", "a.b", "-a", "a-", "a/client", "a\n", "ä"])
def test_invalid_job_id_is_refused(job_id):
    with pytest.raises(SpecError, match="must be valid in a host name") as caught:
        make(job_id)
    assert "63" in caught.value.hint


@pytest.mark.parametrize("valid_s", [0, -1, float("nan"), float("inf"), 1e15])
def test_invalid_validity_is_refused(valid_s):
    with pytest.raises(SpecError, match="cannot be valid for") as caught:
        make(valid_s=valid_s)
    assert caught.value.hint


@pytest.mark.parametrize("valid_s", [1, 60 * 365 * DAY_S])
def test_short_and_long_validity(valid_s):
    assert load(make(valid_s=valid_s), "ca.crt").not_valid_after_utc.timestamp() == int(
        NOW_S + valid_s
    )


def test_serial_numbers_differ():
    files = make()
    serials = [load(files, name).serial_number for name in ("ca.crt", "node.crt", "client.crt")]
    assert all(a != b for a, b in itertools.combinations(serials, 2))


def test_cryptography_is_imported_on_first_use():
    code = "import sys, windlass.engines.cluster.job_secret; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
