from __future__ import annotations

import gzip
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windlass.errors
from windlass.bundle.archive import extract
from windlass.bundle.manifest import EMPTY, FileEntry, Manifest, make_delta, make_manifest
from windlass.errors import BundleError, ProtocolError, WindlassError

from .crafted import archive_of, delta_of, entry_of, header, link_of, member, packed
from .trees import File, Link, read_tree, touch

evil_parts = st.sampled_from(["..", ".", "a", "b", "l", "", "out", "C:", "\\"])
evil_paths = st.one_of(
    st.lists(evil_parts, min_size=1, max_size=4).map("/".join),
    st.sampled_from(["/", "/tmp/windlass-evil", "../out/x", "l/x", "l/../x", "a/l/x", "~"]),
)
evil_entries = st.one_of(
    evil_paths.map(lambda path: entry_of(path, b"evil")),
    st.builds(link_of, evil_paths, evil_paths),
)


def attempt(dest: Path, entries: list[FileEntry], base: Manifest) -> Manifest:
    """Apply entries and remove all others, as an attacker would."""
    removed = tuple({entry.path for entry in base.entries} - {entry.path for entry in entries})
    delta = delta_of(entries, base=base.digest, removed=removed)
    contents = {entry.path: b"evil" for entry in entries}
    try:
        return extract(archive_of(delta, contents), dest, base=base)
    except (BundleError, ProtocolError):
        return base


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(evil_entries, min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_is_ever_written_outside(archives: list[list[FileEntry]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "out")
        touch(outside, "keep", "x")
        dest = Path(folder, "dest")
        base = EMPTY
        for entries in archives:
            base = attempt(dest, entries, base)
        assert sorted(os.listdir(folder)) == ["dest", "out"]
        assert read_tree(outside) == {"keep": File(b"x = 1\n"), "x": File(b"x = 1\n")}
        assert not Path("/tmp/windlass-evil").exists()
        for path, node in read_tree(dest).items():
            if isinstance(node, Link):
                assert Path(os.path.realpath(dest / path)).is_relative_to(os.path.realpath(dest))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_archive_changes_nothing(data: st.DataObject) -> None:
    delta = delta_of([entry_of("a.py", b"one"), entry_of("b/c.py", b"two")])
    blob = bytearray(archive_of(delta, {"a.py": b"one", "b/c.py": b"two"}).getvalue())
    at = data.draw(st.integers(0, len(blob) - 1))
    if data.draw(st.booleans()):
        blob[at] ^= data.draw(st.integers(1, 255))
    else:
        del blob[at:]
    with tempfile.TemporaryDirectory() as folder:
        try:
            extract(io.BytesIO(blob), Path(folder))
        except WindlassError:
            assert os.listdir(folder) == []
        else:
            assert sorted(read_tree(Path(folder))) == ["a.py", "b/c.py"]


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(noise: bytes) -> None:
    for blob in (noise, gzip.compress(noise)):
        with tempfile.TemporaryDirectory() as folder, pytest.raises(WindlassError):
            extract(io.BytesIO(blob), Path(folder))


def test_link_made_by_user_code_is_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "out/x.py", text="mine")
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "pkg").symlink_to(tmp_path / "out")
    (dest / "file.py").symlink_to(tmp_path / "out/x.py")
    with pytest.raises(BundleError, match=r"pkg in .* is not a plain folder"):
        extract(archive_of(delta_of([entry_of("pkg/x.py", b"")]), {}), dest)
    extract(archive_of(delta_of([entry_of("file.py", b"new")]), {"file.py": b"new"}), dest)
    assert read_tree(tmp_path / "out") == {"x.py": File(b"mine")}
    assert read_tree(dest)["file.py"] == File(b"new")


def test_link_through_a_link_made_by_user_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "data").symlink_to(tmp_path / "out")
    with pytest.raises(BundleError, match="would point outside"):
        extract(archive_of(delta_of([link_of("l", "data/x")]), {}), dest)
    assert not (dest / "l").is_symlink()


def test_only_files_of_the_base_are_removed(tmp_path: Path) -> None:
    old = make_manifest([entry_of("pkg/a.py", b"a"), entry_of("b.py", b"b")])
    extract(archive_of(make_delta(EMPTY, old), {"pkg/a.py": b"a", "b.py": b"b"}), tmp_path)
    touch(tmp_path, "checkpoint.pt")
    new = make_manifest([entry_of("b.py", b"b")])
    sly = delta_of((), base=old.digest, digest=new.digest, removed=("pkg/a.py", "checkpoint.pt"))
    with pytest.raises(BundleError, match="not part of the bundle"):
        extract(archive_of(sly, {}), tmp_path, base=old)
    extract(archive_of(make_delta(old, new), {}), tmp_path, base=old)
    assert sorted(os.listdir(tmp_path)) == ["b.py", "checkpoint.pt"]


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    touch(tmp_path, "out/a.py")
    dest = tmp_path / "dest"
    old = make_manifest([entry_of("pkg/a.py"), entry_of("b.py")])
    extract(archive_of(make_delta(EMPTY, old), {}), dest)
    (dest / "pkg/a.py").unlink()
    (dest / "pkg").rmdir()
    (dest / "pkg").symlink_to(tmp_path / "out")
    new = make_manifest([entry_of("b.py")])
    with pytest.raises(BundleError, match="not a plain folder"):
        extract(archive_of(make_delta(old, new), {}), dest, base=old)
    assert (tmp_path / "out/a.py").exists()


def test_package_becomes_a_file_despite_compiled_files(tmp_path: Path) -> None:
    old = make_manifest([entry_of("model/__init__.py")])
    extract(archive_of(make_delta(EMPTY, old), {}), tmp_path)
    touch(tmp_path, "model/__pycache__/__init__.cpython-311.pyc")
    new = make_manifest([entry_of("model", b"file")])
    extract(archive_of(make_delta(old, new), {"model": b"file"}), tmp_path, base=old)
    assert read_tree(tmp_path) == {"model": File(b"file")}


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    touch(tmp_path, "model/results.csv")
    with pytest.raises(BundleError, match="folder with other files"):
        extract(archive_of(delta_of([entry_of("model")]), {}), tmp_path)
    assert (tmp_path / "model/results.csv").exists()


def test_modes_come_from_the_delta_alone(tmp_path: Path) -> None:
    delta = delta_of([entry_of("a"), entry_of("b", executable=True)])
    members = [member("files/a", mode=0o7777, uid=1), member("files/b", mode=0o7777)]
    extract(packed([header(delta), *members]), tmp_path)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755
    assert (tmp_path / "a").stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
    ],
)
def test_only_regular_members_are_read(tmp_path: Path, kind: bytes) -> None:
    delta = delta_of([entry_of("a")])
    blob = packed([header(delta), member("files/a", type=kind, linkname="/etc/passwd")])
    with pytest.raises(BundleError, match="in place of the plain file"):
        extract(blob, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ([], "is missing"),
        ([member("files/b", b"x")], "in place of"),
        ([member("../a", b"x")], "in place of"),
        ([member("files/a", b"xx")], "stated size"),
        ([member("files/a", b"y")], "does not match its hash"),
        ([member("files/a", b"x"), member("files/a", b"x")], "more files"),
        ([member("files/a", b"x"), member("../evil", b"x")], "more files"),
    ],
)
def test_archive_must_match_the_delta(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], word: str
) -> None:
    with pytest.raises(BundleError, match=word) as caught:
        extract(packed([header(delta_of([entry_of("a", b"x")])), *members]), tmp_path / "dest")
    assert caught.value.hint == "send the bundle again"
    assert os.listdir(tmp_path / "dest") == []


def test_the_size_is_bounded_before_anything_is_written(tmp_path: Path) -> None:
    delta = delta_of([entry_of("a", b"x" * 100), entry_of("b", b"x")])
    with pytest.raises(BundleError, match="101 bytes, over the limit of 100"):
        extract(archive_of(delta, {"a": b"x" * 100, "b": b"x"}), tmp_path, max_bytes=100)
    assert os.listdir(tmp_path) == []


def test_bomb_after_the_last_file_is_refused_early(tmp_path: Path) -> None:
    plain = gzip.decompress(archive_of(delta_of([entry_of("a", b"x")]), {"a": b"x"}).getvalue())
    with pytest.raises(BundleError, match="more data than its header states"):
        extract(io.BytesIO(gzip.compress(plain + bytes(64 << 20))), tmp_path)
    assert os.listdir(tmp_path) == []


def test_bomb_in_a_tar_header_is_refused_early(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    with pytest.raises(BundleError, match="header is too long"):
        extract(io.BytesIO(gzip.compress(info.tobuf() + bytes(2 << 20))), tmp_path)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (b"[" * 100_000, BundleError),
        (b"{", BundleError),
        (b"\xff", BundleError),
        (b"[]", ProtocolError),
        (b'{"version": 2}', ProtocolError),
        (b'{"version": 1}', ProtocolError),
        (b'{"version": 1, "base": 3, "digest": "", "written": []}', ProtocolError),
        (b'{"version": 1, "base": "", "digest": "", "written": [7]}', ProtocolError),
    ],
)
def test_malformed_table_is_refused(
    tmp_path: Path, table: bytes, error: type[WindlassError]
) -> None:
    with pytest.raises(error) as caught:
        extract(packed([member("delta.json", table)]), tmp_path)
    assert caught.value.hint


def test_name_that_cannot_be_encoded_is_refused(tmp_path: Path) -> None:
    delta = delta_of([entry_of("a\udcff")])
    blob = packed([header(delta), member("files/a")])
    assert "\\udcff" in json.dumps("a\udcff")
    with pytest.raises(BundleError, match="UTF-8"):
        extract(blob, tmp_path)


def test_digest_of_the_sender_is_checked(tmp_path: Path) -> None:
    delta = delta_of([entry_of("a")])
    with pytest.raises(BundleError, match="was expected"):
        extract(archive_of(delta, {}), tmp_path, expected="0" * 64)
    assert extract(archive_of(delta, {}), tmp_path, expected=delta.digest).digest == delta.digest


def test_a_delta_for_another_base_is_refused(tmp_path: Path) -> None:
    old = make_manifest([entry_of("a")])
    with pytest.raises(BundleError, match="complete bundle"):
        extract(archive_of(make_delta(old, old), {}), tmp_path)


def test_applying_a_delta_twice_is_harmless(tmp_path: Path) -> None:
    old, new = make_manifest([entry_of("d/a")]), make_manifest([entry_of("b"), link_of("l", "b")])
    extract(archive_of(make_delta(EMPTY, old), {}), tmp_path)
    for _ in range(2):
        assert extract(archive_of(make_delta(old, new), {}), tmp_path, base=old) == new
    assert sorted(os.listdir(tmp_path)) == ["b", "l"]


def test_disk_error_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot unpack the bundle into"):
        extract(archive_of(delta_of([entry_of("a")]), {}), tmp_path / "file")


def test_extraction_imports_only_the_standard_library() -> None:
    source = Path(windlass.errors.__file__).parents[1]
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import windlass.bundle.archive as e;"
        "bad = {'pathspec', 'cloudpickle', 'windlass.bundle.select'} & set(sys.modules);"
        "sys.exit(f'{bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, timeout=60)
