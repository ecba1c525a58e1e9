from __future__ import annotations

from pathlib import Path

import pytest

from windlass.bundle.collect import SNIFFED_BYTES, Suspicion, suspect

HEADER = "-----BEGIN {}-----\nMIIB\n-----END {}-----\n"


def scan(folder: Path, path: str, text: str = "") -> Suspicion | None:
    file = folder / "looked-at"
    file.write_text(text)
    return suspect(file, path, file.stat().st_size)


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "deploy/.env.production",
        "prod.env",
        ".ENV",
        "cert.pem",
        "server.key",
        "id_rsa",
        "id_ed25519_work",
        "kubeconfig",
        "kubeconfig.yaml",
        "dev.kubeconfig",
        ".kube/config",
        "a/.kube/config",
        ".aws/credentials",
        "credentials.json",
        ".netrc",
        ".pypirc",
        "store.p12",
    ],
)
def test_secret_names(tmp_path: Path, path: str) -> None:
    suspicion = scan(tmp_path, path)
    assert suspicion
    assert suspicion.certain


@pytest.mark.parametrize(
    "path",
    [
        ".env.example",
        "id_rsa.pub",
        "environment.yml",
        "config",
        "kubeconfig.py",
        "keys.py",
        "credentials.py",
        "monkey.txt",
    ],
)
def test_harmless_names(tmp_path: Path, path: str) -> None:
    assert scan(tmp_path, path) is None


@pytest.mark.parametrize("path", ["secrets.yaml", ".npmrc", "service-account-dev.json"])
def test_suspicious_names_only_warn(tmp_path: Path, path: str) -> None:
    suspicion = scan(tmp_path, path)
    assert suspicion
    assert not suspicion.certain


@pytest.mark.parametrize(
    "kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
)
def test_a_private_key_under_any_name(tmp_path: Path, kind: str) -> None:
    suspicion = scan(tmp_path, "notes.txt", "hello\n" + HEADER.format(kind, kind))
    assert suspicion
    assert suspicion.reason == "contains a private key"


def test_a_service_account_under_any_name(tmp_path: Path) -> None:
    text = '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMII"}'
    suspicion = scan(tmp_path, "gcp.json", text)
    assert suspicion
    assert suspicion.certain


def test_a_kubeconfig_under_any_name(tmp_path: Path) -> None:
    suspicion = scan(tmp_path, "cluster.txt", "users:\n- user:\n    client-key-data: " + "A" * 60)
    assert suspicion
    assert "kubeconfig" in suspicion.reason


def test_code_that_mentions_keys_is_not_a_key(tmp_path: Path) -> None:
    text = 'HEADER = "-----BEGIN PRIVATE KEY-----"\n# client-key-data: is a field\n'
    assert scan(tmp_path, "pem.py", text) is None


def test_certificates_are_public(tmp_path: Path) -> None:
    both = HEADER.format("CERTIFICATE", "CERTIFICATE")
    assert scan(tmp_path, "ca.pem", both) is None
    assert scan(tmp_path, "ca.pem", both + HEADER.format("PRIVATE KEY", "PRIVATE KEY"))


def test_large_files_are_checked_by_name_alone(tmp_path: Path) -> None:
    text = HEADER.format("PRIVATE KEY", "PRIVATE KEY") + " " * SNIFFED_BYTES
    assert scan(tmp_path, "weights.bin", text) is None
    assert scan(tmp_path, "weights.pem", text)
