"""TLS contexts: their requirements, the role in a certificate, and errors for wrong files."""

from __future__ import annotations

import ssl
import tempfile

import pytest
from tls_peers import JOB, write_certificates

from windlass.errors import EngineError, ProtocolError
from windlass.wire import tls


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path / "tls")


NAME = tls.server_name(JOB)


def shake_hands(server, client, server_hostname=NAME):
    """Do a handshake in memory, and return both ends."""
    wires = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(wires[0], wires[1], server_hostname=server_hostname),
        server.wrap_bio(wires[1], wires[0], server_side=True),
    )
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends


@pytest.mark.parametrize("cert", ["node", "client"])
def test_both_sides_authenticate(files, cert):
    client, server = shake_hands(tls.server_context(files), tls.client_context(files, cert))
    assert (client.version(), server.version()) == ("TLSv1.3", "TLSv1.3")
    assert tls.read_role(server.getpeercert()) == (JOB, cert)
    assert tls.read_role(client.getpeercert()) == (JOB, "node")


def test_context_from_memory_leaves_no_files(files, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    held = {path.name: path.read_bytes() for path in files.iterdir()}
    context = tls.client_context_from(held)
    assert list(temporary.iterdir()) == []
    _, server = shake_hands(tls.server_context(files), context)
    assert tls.read_role(server.getpeercert()) == (JOB, "client")


def test_contexts_are_strict(files):
    for context in (tls.server_context(files), tls.client_context(files)):
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_flags & ssl.VERIFY_X509_STRICT
    assert tls.client_context(files).check_hostname


def test_a_client_cannot_pose_as_a_node(files):
    """The CA is right, but the certificate is for clients only."""
    posing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    posing.load_cert_chain(files / "client.crt", files / "client.key")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(posing, tls.client_context(files))


def test_node_of_another_job_is_refused(files, tmp_path):
    other = write_certificates(tmp_path / "other", "other-1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls.server_context(other), tls.client_context(files))


def test_the_name_is_checked(files):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname"):
        shake_hands(
            tls.server_context(files), tls.client_context(files), tls.server_name("other-1")
        )


@pytest.mark.parametrize("name", ["ca.crt", "node.crt", "node.key"])
def test_a_missing_file_is_named(files, name):
    (files / name).unlink()
    with pytest.raises(EngineError, match=name) as caught:
        tls.server_context(files)
    assert "Secret" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
@pytest.mark.parametrize("name", ["ca.crt", "node.crt", "node.key"])
def test_malformed_file_is_named(files, name, data):
    (files / name).write_bytes(data)
    with pytest.raises(EngineError, match=f"{name}.* cannot be used|cannot be used") as caught:
        tls.server_context(files)
    assert name in caught.value.message


def test_a_key_that_belongs_to_another(files):
    (files / "node.key").write_bytes((files / "client.key").read_bytes())
    with pytest.raises(EngineError, match=r"node\.crt and node\.key cannot be used"):
        tls.server_context(files)


def test_what_is_missing_in_memory_is_named():
    with pytest.raises(EngineError, match=r"lack client\.crt, client\.key"):
        tls.client_context_from({"ca.crt": b""})


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "node.a.windlass.internal"),),
        (("URI", "windlass://a/node"), ("URI", "windlass://a/client")),
        (("URI", "https://a/node"),),
        (("URI", "windlass://a/root"),),
        (("URI", "windlass://A/node"),),
        (("URI", "windlass://a/node/more"),),
        (("URI", "windlass:///node"),),
    ],
)
def test_no_role_in_a_certificate(names):
    with pytest.raises(ProtocolError):
        tls.read_role({"subjectAltName": names})


def test_missing_certificate_has_no_role():
    with pytest.raises(ProtocolError, match="0 roles"):
        tls.read_role(None)
