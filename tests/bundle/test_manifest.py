from __future__ import annotations

import dataclasses
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import records
from windlass.bundle.manifest import (
    EMPTY,
    Delta,
    FileEntry,
    Manifest,
    apply_delta,
    make_delta,
    make_manifest,
)
from windlass.errors import BundleError

from .crafted import entry_of, link_of
from .trees import Link, Tree, trees

FROZEN = "b5fe31b31a42728fb916694ce461cc8c4ac4c724e396332643909a0ff461f64e"


def manifest_of(tree: Tree) -> Manifest:
    return make_manifest(
        link_of(path, node.target)
        if isinstance(node, Link)
        else entry_of(path, node.content, executable=node.executable)
        for path, node in tree.items()
    )


@given(trees(), st.randoms())
def test_the_digest_does_not_depend_on_order(tree: Tree, random: Random) -> None:
    manifest = manifest_of(tree)
    shuffled = list(manifest.entries)
    random.shuffle(shuffled)
    assert make_manifest(shuffled) == manifest


@pytest.mark.parametrize(
    "change",
    [
        {"path": "b"},
        {"executable": True},
        {"sha256": "0" * 64},
        {"size_bytes": 9},
        {"link": "x", "sha256": "", "size_bytes": 0},
    ],
)
def test_the_digest_depends_on_everything_else(change: dict[str, object]) -> None:
    entry = entry_of("a", b"content")
    other = dataclasses.replace(entry, **change)  # type: ignore[arg-type]
    assert make_manifest([entry]).digest != make_manifest([other]).digest


def test_the_digest_is_frozen() -> None:
    """Changing it makes every cached bundle stale, and needs a new version."""
    manifest = make_manifest(
        [entry_of("a", b"1"), entry_of("ü", b"", executable=True), link_of("l", "a")]
    )
    assert manifest.digest == FROZEN


@given(trees(), trees())
def test_a_delta_leads_from_old_to_new(first: Tree, second: Tree) -> None:
    old, new = manifest_of(first), manifest_of(second)
    delta = make_delta(old, new)
    assert apply_delta(old, delta) == new
    assert not set(delta.removed) & {entry.path for entry in delta.written}


@given(trees())
def test_nothing_changed_is_an_empty_delta(tree: Tree) -> None:
    manifest = manifest_of(tree)
    delta = make_delta(manifest, manifest)
    assert (delta.written, delta.removed) == ((), ())
    assert make_delta(EMPTY, manifest).written == manifest.entries


@given(trees(), trees())
def test_json_round_trips(first: Tree, second: Tree) -> None:
    manifest = manifest_of(first)
    delta = make_delta(manifest, manifest_of(second))
    assert records.read(Manifest, json.loads(json.dumps(records.to_json(manifest)))) == manifest
    assert records.read(Delta, json.loads(json.dumps(records.to_json(delta)))) == delta


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([entry_of("../x")], "contains `..`"),
        ([entry_of("a"), entry_of("a")], "twice"),
        ([entry_of("a"), entry_of("a/b/c")], "both a file and a parent folder"),
        ([link_of("a", "b"), entry_of("a/c"), entry_of("b/c")], "both a file and a parent folder"),
        ([link_of("a", "../b")], "leaves the root"),
        ([FileEntry(path="a", size_bytes=1, sha256="nonsense")], "size or hash"),
        ([entry_of("a", size_bytes=-1)], "size or hash"),
    ],
)
def test_invalid_bundles_are_refused(entries: list[FileEntry], word: str) -> None:
    with pytest.raises(BundleError, match=word):
        make_manifest(entries)


def test_a_delta_fits_its_base_only() -> None:
    old, new, other = (make_manifest([entry_of("a", content)]) for content in (b"1", b"2", b"3"))
    with pytest.raises(BundleError, match="starts from bundle") as caught:
        apply_delta(other, make_delta(old, new))
    assert "complete bundle" in caught.value.hint


def test_delta_must_match_its_digest() -> None:
    old, new = make_manifest([entry_of("a", b"1")]), make_manifest([entry_of("a", b"2")])
    delta = make_delta(old, new)
    with pytest.raises(BundleError, match="but states"):
        apply_delta(old, dataclasses.replace(delta, digest=old.digest))
    with pytest.raises(BundleError, match="not part of the bundle"):
        apply_delta(old, dataclasses.replace(delta, removed=("elsewhere",)))
    with pytest.raises(BundleError, match="twice"):
        apply_delta(old, dataclasses.replace(delta, written=delta.written * 2))
