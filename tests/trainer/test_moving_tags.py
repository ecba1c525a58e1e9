"""Images with moving tags. TrainerClient pulls them only where they are missing, and logs that."""

from __future__ import annotations

import pytest
from kube.plans import make_pod_plan

from windlass.kube.objects.manifests import FileNames
from windlass.kube.objects.pod_template import make_template
from windlass.trainer.translate import keep_present


@pytest.mark.parametrize("image", ["docker.io/a/b:latest", "a/b", "host:5000/b"])
def test_moving_tag_uses_the_image_on_the_node(image):
    patch, note = keep_present(image)
    for called in ("windlass", "node", "pytorch"):  # the name that kind uses
        plan = make_pod_plan(image=image, patch=patch)
        template = make_template(plan, FileNames(keys=(), num_parts=0), container=called)
        (container,) = template["spec"]["containers"]
        assert (container["name"], container["image"]) == (called, image)
        assert container["imagePullPolicy"] == "IfNotPresent"
    assert note.startswith(f"{image} is only pulled where it is missing")


@pytest.mark.parametrize("image", ["", "a/b:1.2", "a/b:latest@sha256:00"])
def test_other_images_are_not_logged(image):
    assert keep_present(image) == ({}, "")
