"""What goes wrong in a loop, each as a context: broken inside, mended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import yaml
from keda import Keda
from pool_loop import ALL, PoolLoop

MISSING = "stream2llm:pool_prefill_backlog_seconds"


@contextmanager
def prometheus_down(loop: PoolLoop, keda: Keda) -> Iterator[None]:
    loop.prometheus.stop()
    yield
    loop.prometheus.start()


@contextmanager
def series_missing(loop: PoolLoop, keda: Keda) -> Iterator[None]:
    rules = loop.prometheus.rules
    text = rules.read_text()
    document = yaml.safe_load(text)
    for group in document["groups"]:
        group["rules"] = [
            rule for rule in group["rules"] if rule["record"] != "stream2llm:pool_prefill_backlog_seconds"
        ]
    rules.write_text(yaml.safe_dump(document))
    loop.prometheus.reload()
    yield
    rules.write_text(text)
    loop.prometheus.reload()


@contextmanager
def keda_killed(loop: PoolLoop, keda: Keda) -> Iterator[None]:
    keda.stop(hard=True)
    yield
    keda.start()


@contextmanager
def no_scrape_answered(loop: PoolLoop, keda: Keda) -> Iterator[None]:
    loop.unread = {ALL}
    yield
    loop.unread = set()
