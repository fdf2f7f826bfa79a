from __future__ import annotations

import copy
from typing import Any

import pytest

from stream2llm_operator.desired.merging import merged

BASE: dict[str, Any] = {
    "spec": {
        "nodeSelector": {"gpu": "a"},
        "tolerations": [{"key": "gpu"}],
        "containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"gpu": "1"}}}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
}


@pytest.mark.parametrize(
    ("over", "path", "expected"),
    [
        ({"spec": {"nodeSelector": {"zone": "b"}}}, ("spec", "nodeSelector"), {"gpu": "a", "zone": "b"}),
        ({"spec": {"tolerations": [{"key": "x"}]}}, ("spec", "tolerations"), [{"key": "gpu"}, {"key": "x"}]),
        ({"spec": {"tolerations": [{"key": "gpu"}]}}, ("spec", "tolerations"), [{"key": "gpu"}]),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}]}]}},
            ("spec", "containers", 0, "env"),
            [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        ),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "9"}]}]}},
            ("spec", "containers", 0, "env"),
            [{"name": "A", "value": "9"}],
        ),
        (
            {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "6Gi"}}}]}},
            ("spec", "containers", 0, "resources"),
            {"limits": {"gpu": "1", "memory": "6Gi"}},
        ),
        ({"spec": {"containers": [{"name": "logs"}]}}, ("spec", "containers", 1), {"name": "logs"}),
        ({"spec": {"nodeSelector": None}}, ("spec", "nodeSelector"), None),
        (
            {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]}},
            ("spec", "volumes"),
            [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        ),
        ({"spec": {"newField": [1, 2]}}, ("spec", "newField"), [1, 2]),
    ],
)
def test_over_is_laid_over_base(over: dict[str, Any], path: tuple[Any, ...], expected: Any) -> None:
    before = copy.deepcopy(BASE)
    value: Any = merged(BASE, over)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else value[step]
    assert value == expected
    assert before == BASE


def test_nothing_over_base_is_base() -> None:
    assert merged(BASE, {}) == BASE
