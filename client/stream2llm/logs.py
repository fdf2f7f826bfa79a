"""Logs as lines for people, or as one JSON object a line for machines."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time

FORMATS = ("text", "json")
ABOUT = ("tenant", "stream")
"""What a line about a stream says of it, beside its text."""


def add_log_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format",
        type=_format,
        default=os.environ.get("STREAM2LLM_LOG_FORMAT", "text"),
        metavar="F",
        help="text, or json: one object a line, with tenant and stream in each about a stream (default text)",
    )


def about(tenant: str, stream: str) -> dict[str, str]:
    """`extra` of a log call about a stream."""
    return {"tenant": tenant, "stream": stream}


class JSONLines(logging.Formatter):
    """time (RFC 3339, UTC), level, logger, message; tenant and stream if it is about one; exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in ABOUT if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def show_logs(form: str, text: str = "%(asctime)s %(levelname)s %(message)s") -> None:
    """The root logger's lines go to standard error in this form, from INFO on. text: what a line for people has."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _format(text: str) -> str:
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} is not known; choose one of {', '.join(FORMATS)}")
    return text
