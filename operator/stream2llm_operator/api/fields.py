"""Field types that several parts of the resource share, each with its bounds."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_VALUE = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_NAME)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
RunId = Annotated[str, StringConstraints(max_length=63, pattern=r"^[-._A-Za-z0-9]*$")]
"""An id whose change asks for one more run of something; empty before the first."""

Quantity = Annotated[
    str,
    BeforeValidator(str),
    StringConstraints(pattern=QUANTITY, max_length=32),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY,
            "maxLength": 32,
        }
    ),
]
"""An amount with a binary or decimal suffix, as Kubernetes writes it."""

_FACTORS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTP", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTP", 1)},
}


def quantity_bytes(quantity: str) -> int:
    """The whole bytes in a Quantity; what is below one is dropped."""
    number = quantity.rstrip("mkMGTPKi")
    return int(Decimal(number) * _FACTORS[quantity[len(number) :]])


Template = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A part of a Kubernetes object. Its own schema would make the CRD larger than what `kubectl apply` takes."""


def rules(*expressions: tuple[str, str]) -> dict[str, Any]:
    """CEL rules for a model's `json_schema_extra`, as (expression, message)."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in expressions]}


def exactly_one(*names: str) -> tuple[str, str]:
    """The rule of a union: one of its members and no other."""
    present = ", ".join(f"has(self.{name})" for name in names)
    return f"[{present}].filter(x, x).size() == 1", f"exactly one of {', '.join(names)} must be set"


class Part(BaseModel):
    """Base of all parts: camelCase names outside, attribute docstrings as descriptions, immutable once read.

    Unknown fields are left out, not refused: the API server prunes them, and an older operator must read what a newer
    one has written.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        regex_engine="python-re",
    )


class SecretKey(Part):
    """One key of a Secret in the same namespace."""

    name: ObjectName
    """The Secret's name."""
    key: DataKey
    """The key in it."""


class ConfigKey(Part):
    """One key of a ConfigMap in the same namespace."""

    name: ObjectName
    """The ConfigMap's name."""
    key: DataKey
    """The key in it."""


class ObjectReference(Part):
    """An object in the same namespace, by name."""

    name: ObjectName
    """The object's name."""


Annotations = Annotated[
    dict[str, Annotated[str, StringConstraints(max_length=4096)]],
    Field(max_length=64),
]
"""Annotations of a child object."""
