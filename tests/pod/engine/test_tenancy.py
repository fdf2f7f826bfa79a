"""What an engine request says of its tenant, whoever has written it."""

from __future__ import annotations

from typing import Any

import pytest

from stream2llm_pod.engine.tenancy import Tenants, TenantShare, read_share


def test_a_share_survives_the_way_to_the_engine() -> None:
    share = TenantShare("acme", 2.5)
    assert read_share(share.to_extra_args()) == share


@pytest.mark.parametrize(
    ("extra_args", "expected"),
    [
        (None, None),
        ({}, None),
        ({"stream2llm_weight": 3.0}, None),
        ({"stream2llm_tenant": ["acme"]}, None),
        ({"stream2llm_tenant": "Not:A:Tenant"}, None),
        ({"stream2llm_tenant": "acme"}, TenantShare("acme", 1.0)),
        ({"stream2llm_tenant": "acme", "stream2llm_weight": "2"}, TenantShare("acme", 2.0)),
        ({"stream2llm_tenant": "acme", "stream2llm_weight": 0}, TenantShare("acme", 1.0)),
        ({"stream2llm_tenant": "acme", "stream2llm_weight": float("nan")}, TenantShare("acme", 1.0)),
        ({"stream2llm_tenant": "acme", "stream2llm_weight": 1e9}, TenantShare("acme", 1.0)),
        ({"stream2llm_tenant": "acme", "stream2llm_weight": [1]}, TenantShare("acme", 1.0)),
    ],
)
def test_what_cannot_be_read_harms_nobody(extra_args: dict[str, Any] | None, expected: TenantShare | None) -> None:
    assert read_share(extra_args) == expected


def test_the_last_weight_holds_until_the_last_request_has_left() -> None:
    tenants = Tenants()
    tenants.add("r1", TenantShare("acme", 2.0))
    tenants.add("r2", TenantShare("acme", 3.0))
    assert (tenants.of("r1"), tenants.of("nobody's"), tenants.weights) == ("acme", "default", {"acme": 3.0})
    tenants.discard("r2")
    assert tenants.weights == {"acme": 3.0}
    tenants.discard("r1")
    tenants.discard("r1")
    assert (len(tenants), tenants.weights) == (0, {})
