"""The gateway against the OpenAPI document that it serves: schemathesis makes requests of it, good and bad ones.

Its command is run rather than its pytest plug-in, which does not know pytest 9 yet.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from http_caller import Caller
from running_router import RunningRouter

pytestmark = [pytest.mark.redis, pytest.mark.e2e]
SUPPORT = Path(__file__).parents[2] / "support"
EXAMPLES = 8
EVENTS = "/v1/streams/{stream}/events"


def conforms(router: RunningRouter, folder: Path, token: str, *arguments: str) -> None:
    """`folder` gets what schemathesis remembers, or it would try what another run has found."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{router.url}/openapi.json", "--seed", "1"]
    command += ["--header", f"Authorization: Bearer {token}", "--request-timeout", "30", "--no-color"]
    command += ["--max-examples", str(EXAMPLES), "--continue-on-failure", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "SCHEMATHESIS_HOOKS": "schemathesis_hooks"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_endpoint_answers_as_the_document_says(
    router: RunningRouter, tokens: dict[str, str], tmp_path: Path
) -> None:
    without = [argument for path in ("/v1/streams", "/v1/streams:run", EVENTS) for argument in ("--exclude-path", path)]
    conforms(router, tmp_path, tokens["acme"], *without, "--phases", "examples,coverage,fuzzing")


def test_streams_that_are_opened_can_be_used_as_the_document_links_them(
    router: RunningRouter, tokens: dict[str, str], tmp_path: Path
) -> None:
    """That a prompt holds its marker once is beyond a JSON schema, so valid opens may be refused."""
    only = ["--include-path-regex", "/v1/streams", "--exclude-path", EVENTS]
    conforms(router, tmp_path, tokens["acme"], *only, "--exclude-checks", "positive_data_acceptance")


def test_replies_are_read_as_the_document_says(
    router: RunningRouter, tokens: dict[str, str], globex: Caller, tmp_path: Path
) -> None:
    # By the name of the document's example; other streams of this tenant would be waited for.
    assert globex.post("/v1/streams", json={"prompt": "{context}", "stream": "q1"}).status_code == 201
    assert globex.post("/v1/streams/q1/finish", json={"text": "a b c"}).status_code == 202
    assert globex.events("q1")[-1]["event"] == "done"
    conforms(router, tmp_path, tokens["globex"], "--include-path", EVENTS, "--phases", "examples,coverage,fuzzing")


def test_the_document_says_who_may(router: RunningRouter, nobody: Caller) -> None:
    document = nobody.get("/openapi.json").json()
    operations = {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert sorted(operations) == [
        "DELETE /v1/streams/{stream}",
        "GET /dashboard",
        "GET /health",
        "GET /metrics",
        "GET /overview.json",
        "GET /status.json",
        "GET /v1/models",
        "GET /v1/streams/{stream}/events",
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/embeddings",
        "POST /v1/streams",
        "POST /v1/streams/{stream}/chunks",
        "POST /v1/streams/{stream}/finish",
        "POST /v1/streams:run",
        "PUT /v1/streams/{stream}/context",
    ]
    for name, operation in operations.items():
        assert operation.get("security", []) == ([{"HTTPBearer": []}] if "/v1/" in name else [])
        assert operation["operationId"].isidentifier()
