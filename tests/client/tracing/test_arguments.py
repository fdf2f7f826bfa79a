"""What is refused before anything starts."""

from __future__ import annotations

import argparse
import sys

import pytest

from stream2llm.tracing.arguments import CannotTrace, TracingSettings, add_tracing_arguments, tracing_from_arguments


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_tracing_arguments(parser)
    return parser.parse_args(arguments)


def test_traces_are_off_unless_there_is_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing_from_arguments(parsed()) is None
    endpoint = "http://collector:4318/v1/traces"
    assert tracing_from_arguments(parsed("--traces-endpoint", endpoint)) == TracingSettings(endpoint, 100)
    monkeypatch.setenv("STREAM2LLM_TRACES_ENDPOINT", endpoint)
    monkeypatch.setenv("STREAM2LLM_TRACES_PERCENT", "2.5")
    assert tracing_from_arguments(parsed()) == TracingSettings(endpoint, 2.5)


@pytest.mark.parametrize("percent", ["-1", "100.1", "nan", "many"])
def test_a_percentage_is_one(percent: str) -> None:
    with pytest.raises(CannotTrace, match="must be a number from 0 to 100"):
        tracing_from_arguments(parsed("--traces-endpoint", "http://c:4318/v1/traces", "--traces-percent", percent))


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://", "u:geheim@collector"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(CannotTrace, match="must be a URL") as told:
        tracing_from_arguments(parsed("--traces-endpoint", endpoint))
    assert "geheim" not in str(told.value)


def test_a_password_is_not_given_in_the_url() -> None:
    with pytest.raises(CannotTrace, match="OTEL_EXPORTER_OTLP_HEADERS") as told:
        tracing_from_arguments(parsed("--traces-endpoint", "http://u:geheim@collector:4318/v1/traces"))
    assert "geheim" not in str(told.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(CannotTrace, match=r"install stream2llm\[tracing\]"):
        tracing_from_arguments(parsed("--traces-endpoint", "http://collector:4318/v1/traces"))
