"""Whether events still flow: now and then the resources are listed, and what the watch shows is compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Namespace and name of a resource."""


@dataclass(slots=True)
class WatchAge:
    """For how long the watch has been behind the API server.

    An object is behind while the watch shows another version of it than a list, or none, or one that is gone. What
    the watch moves on with counts anew: it may be late, but it flows.
    """

    _behind: dict[tuple[Key, str], float] = field(default_factory=dict)
    """Since when, by object and the version that the watch shows; '' for none."""

    def observe(self, listed: Mapping[Key, str], watched: Mapping[Key, str], now_s: float) -> float:
        """Versions by object, of a list and of the watch right after it. Returns seconds; 0 while nothing is behind."""
        behind = {
            (key, watched.get(key, "")) for key in {*listed, *watched} if listed.get(key, "") != watched.get(key, "")
        }
        self._behind = {each: self._behind.get(each, now_s) for each in behind}
        return max((now_s - since_s for since_s in self._behind.values()), default=0.0)
