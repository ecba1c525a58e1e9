from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.bundle.collect import Finding, FindingKind, Limits, Severity, find_problems, refuse
from windlass.bundle.select import select_files
from windlass.errors import BundleError

from .trees import touch

OTHER_UID = 65534


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_plain_files_pass(tmp_path: Path) -> None:
    touch(tmp_path, "a.py", "b/c.py")
    (tmp_path / "l").symlink_to("b/c.py")
    assert find_problems(tmp_path, ("a.py", "b/c.py", "l")) == ()


def test_secrets_are_refused_unless_allowed_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "deploy/.env")
    finding = only(find_problems(tmp_path, ["deploy/.env"]))
    assert (finding.kind, finding.severity) == (FindingKind.CREDENTIAL, Severity.REFUSE)
    assert ".windlassignore" in finding.message
    assert "allow it by name" in finding.message
    for pattern in (".env", "deploy/.env", "deploy/*"):
        assert find_problems(tmp_path, ["deploy/.env"], allow=(pattern,)) == ()
    assert find_problems(tmp_path, ["deploy/.env"], allow=("other",)) != ()


def test_suspicious_names_warn_and_pass(tmp_path: Path) -> None:
    touch(tmp_path, "secrets.yaml")
    findings = find_problems(tmp_path, ["secrets.yaml"])
    assert only(findings).severity is Severity.WARN
    refuse(findings)


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"")
    os.truncate(tmp_path / "w.bin", (100 << 20) + 1)
    finding = only(find_problems(tmp_path, ["w.bin"]))
    assert finding.kind is FindingKind.TOO_LARGE
    assert "100.0 MiB" in finding.message
    assert find_problems(tmp_path, ["w.bin"], allow=("*.bin",)) == ()


def test_all_files_together_over_the_limit(tmp_path: Path) -> None:
    for name, size_bytes in (("a", 10), ("b", 30), ("c", 20), ("d", 1)):
        (tmp_path / name).write_bytes(b"x" * size_bytes)
    finding = only(find_problems(tmp_path, "abcd", limits=Limits(total_bytes=60)))
    assert finding.kind is FindingKind.TOTAL_TOO_LARGE
    assert (
        finding.message.index("b (") < finding.message.index("c (") < finding.message.index("a (")
    )
    assert "d (" not in finding.message
    assert find_problems(tmp_path, "abcd", limits=Limits(total_bytes=61)) == ()


@pytest.mark.parametrize("target", ["/etc/hostname", "..", "../sibling", "inner/../.."])
def test_links_out_of_the_root(tmp_path: Path, target: str) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "l").symlink_to(target)
    finding = only(find_problems(root, ["l"]))
    assert (finding.kind, finding.severity) == (FindingKind.LINK_LEAVES, Severity.REFUSE)
    assert target in finding.message


def test_links_out_of_the_root_through_another_link(tmp_path: Path) -> None:
    touch(tmp_path, "root/a/x.py")
    root = tmp_path / "root"
    (root / "a/up").symlink_to("..")
    (root / "sly").symlink_to("a/up/..")
    assert only(find_problems(root, ["a/up", "a/x.py", "sly"])).path == "sly"


def test_links_to_excluded_files_only_warn(tmp_path: Path) -> None:
    touch(tmp_path, "here.py", "ignored.py")
    for name, target in (("ok", "here.py"), ("dead", "gone"), ("lost", "ignored.py"), ("top", ".")):
        (tmp_path / name).symlink_to(target)
    findings = find_problems(tmp_path, ["dead", "here.py", "lost", "ok", "top"])
    assert [finding.path for finding in findings] == ["dead", "lost"]
    assert {finding.kind for finding in findings} == {FindingKind.LINK_DANGLES}
    refuse(findings)


def test_absolute_link_inside_the_root_passes(tmp_path: Path) -> None:
    touch(tmp_path, "a.py")
    (tmp_path / "l").symlink_to(tmp_path / "a.py")
    assert find_problems(tmp_path, ["a.py", "l"]) == ()


def test_pipes_sockets_and_devices() -> None:
    # Socket paths have a length limit, which temporary folders of tests exceed.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        os.mkfifo(Path(folder, "pipe"))
        listener.bind(str(Path(folder, "socket")))
        findings = find_problems(Path(folder), ["pipe", "socket"])
    assert [finding.kind for finding in findings] == [FindingKind.SPECIAL, FindingKind.SPECIAL]
    assert only(find_problems(Path("/dev"), ["null"])).kind is FindingKind.SPECIAL


def test_names_that_cannot_be_sent(tmp_path: Path) -> None:
    for name in ("back\\slash", "C:drive", "raw\udcff"):
        (tmp_path / name).write_text("")
    findings = find_problems(tmp_path, select_files(tmp_path))
    assert {finding.kind for finding in findings} == {FindingKind.NAME}
    assert len(findings) == 3
    with pytest.raises(BundleError) as caught:
        refuse(findings)
    str(caught.value).encode()


def test_file_deleted_during_the_check(tmp_path: Path) -> None:
    finding = only(find_problems(tmp_path, ["gone.py"]))
    assert finding.kind is FindingKind.UNREADABLE
    assert "No such file" in finding.message


@pytest.fixture
def without_rights() -> Iterator[Path]:
    """Return a project with locked parts, seen by a user who may not read them. Root may read everything."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        touch(root, "locked.py", "closed/x.py", "open.py")
        root.chmod(0o755)
        (root / "locked.py").chmod(0)
        (root / "closed").chmod(0)
        uid = os.geteuid()
        if uid == 0:
            os.seteuid(OTHER_UID)
        yield root
        os.seteuid(uid)
        (root / "closed").chmod(0o700)


def test_unreadable_files_and_folders_are_named(without_rights: Path) -> None:
    paths = select_files(without_rights)
    findings = find_problems(without_rights, paths)
    assert [(finding.path, finding.kind) for finding in findings] == [
        ("closed", FindingKind.UNREADABLE),
        ("locked.py", FindingKind.UNREADABLE),
    ]


def test_one_error_names_all(tmp_path: Path) -> None:
    touch(tmp_path, ".env", "a.key")
    with pytest.raises(BundleError) as caught:
        refuse(find_problems(tmp_path, [".env", "a.key"]))
    assert caught.value.message.startswith("2 files must not be sent to nodes:\n  .env: ")
    assert "\n  a.key: " in caught.value.message
    assert ".windlassignore" in caught.value.hint


def test_long_list_is_truncated(tmp_path: Path) -> None:
    names = [f"{number:02}.key" for number in range(33)]
    touch(tmp_path, *names)
    with pytest.raises(BundleError) as caught:
        refuse(find_problems(tmp_path, names))
    lines = caught.value.message.splitlines()
    assert len(lines) == 22
    assert lines[0] == "33 files must not be sent to nodes:"
    assert lines[-1] == "  and 13 more"
