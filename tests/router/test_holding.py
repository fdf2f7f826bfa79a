"""How long a stream that no pod has taken is kept."""

from __future__ import annotations

import pytest

from stream2llm_router.holding import is_late, own_deadline_ms

OPEN_WAIT_MS, START_WAIT_MS = 30_000, 300_000
NOW_MS = 1_000_000
NEVER = 0


@pytest.mark.parametrize(
    ("held_for_ms", "without_pods_ms", "expected"),
    [
        # Pods are there and have no room.
        (29_999, NEVER, False),
        (30_000, NEVER, True),
        # There is no pod: it may be starting.
        (30_000, NOW_MS, False),
        (299_999, NOW_MS, False),
        (300_000, NOW_MS, True),
        # A first pod has come and cannot take all that waited for it at once.
        (200_000, NOW_MS - 29_999, False),
        (200_000, NOW_MS - 30_000, True),
        # That does not go on for ever with pods that come and go.
        (300_000, NOW_MS - 1_000, True),
    ],
)
def test_a_stream_waits_for_room_and_longer_for_a_first_pod(
    held_for_ms: int, without_pods_ms: int, expected: bool
) -> None:
    late = is_late(NOW_MS, NOW_MS - held_for_ms, without_pods_ms, OPEN_WAIT_MS, START_WAIT_MS)
    assert late is expected


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        ({}, None),
        ({b"options": b"{}"}, None),
        ({b"options": b'{"deadline_ms": 5000}'}, 5000),
        ({b"options": b'{"deadline_ms": null}'}, None),
        ({b"options": b'{"deadline_ms": true}'}, None),
        ({b"options": b'{"deadline_ms": "soon"}'}, None),
        ({b"options": b"[]"}, None),
        ({b"options": b"not JSON"}, None),
        ({b"options": b"\xff"}, None),
    ],
)
def test_a_deadline_is_read_from_an_open(opening: dict[bytes, bytes], expected: int | None) -> None:
    assert own_deadline_ms(opening) == expected
