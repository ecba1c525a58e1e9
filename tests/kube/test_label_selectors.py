"""Label selectors with the semantics of Kubernetes."""

from __future__ import annotations

import pytest

from windlass.kube.objects.naming import selects

LABELS = {"app": "train", "team": "a"}


@pytest.mark.parametrize(
    ("selector", "is_meant"),
    [
        ({}, True),
        ({"matchLabels": None}, True),
        ({"matchLabels": {"app": "train"}}, True),
        ({"matchLabels": {"app": "train", "team": "b"}}, False),
        ({"matchLabels": {"other": "x"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["b"]}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        (
            {
                "matchLabels": {"app": "train"},
                "matchExpressions": [{"key": "team", "operator": "DoesNotExist"}],
            },
            False,
        ),
    ],
)
def test_selector_matches(selector, is_meant):
    assert selects(selector, LABELS) == is_meant
