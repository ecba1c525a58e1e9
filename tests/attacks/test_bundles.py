"""Attack: a code archive with paths or links out of its folder, or with a false size."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from bundle.crafted import archive_of, delta_of, entry_of, header, link_of, member, packed

from windlass import WindlassError
from windlass.bundle.archive import extract

TEXT = b"evil"


def _links_out(target: str) -> io.BytesIO:
    return archive_of(delta_of([link_of("in", target), entry_of("in/x", TEXT)]), {"in/x": TEXT})


ARCHIVES = {
    "a path upwards": lambda: _one("../x"),
    "a path upwards in its middle": lambda: _one("a/../../x"),
    "an absolute path": lambda: _one("/tmp/windlass-escape"),
    "a path with a backslash": lambda: _one("..\\x"),
    "an empty path": lambda: _one(""),
    "a path with a NUL": lambda: _one("a\0b"),
    "a link upwards, and a file through it": lambda: _links_out(".."),
    "an absolute link, and a file through it": lambda: _links_out("/tmp"),
    "a link to a file outside": lambda: archive_of(delta_of([link_of("x", "../secret")]), {}),
    "a member that is a link": lambda: packed(
        [
            header(delta_of([entry_of("x", TEXT)])),
            member("files/x", type=tarfile.SYMTYPE, linkname="../secret"),
        ]
    ),
    "a member that is a hard link": lambda: packed(
        [
            header(delta_of([entry_of("x", TEXT)])),
            member("files/x", type=tarfile.LNKTYPE, linkname="../secret"),
        ]
    ),
    "a member that is a device": lambda: packed(
        [header(delta_of([entry_of("x", TEXT)])), member("files/x", type=tarfile.CHRTYPE)]
    ),
    "a size that is a lie": lambda: archive_of(
        delta_of([entry_of("x", TEXT, size_bytes=1 << 50)]), {"x": TEXT}
    ),
}


def _one(path: str) -> io.BytesIO:
    return archive_of(delta_of([entry_of(path, TEXT)]), {path: TEXT})


def _read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("what", ARCHIVES)
def test_archive_that_escapes_its_folder_is_refused(tmp_path, what):
    (tmp_path / "secret").write_bytes(b"secret")
    dest = tmp_path / "code"
    dest.mkdir()
    with pytest.raises(WindlassError):
        extract(ARCHIVES[what](), dest)
    assert _read_files(tmp_path) == {"secret": b"secret"}
    assert not os.path.lexists("/tmp/windlass-escape")
