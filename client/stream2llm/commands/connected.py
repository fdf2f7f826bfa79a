"""What the commands that talk to Redis share: the client from the arguments, and errors as one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from redis.exceptions import RedisError

from stream2llm.client import Client
from stream2llm.errors import Stream2LLMError


def with_client(args: argparse.Namespace, action: Callable[[Client], int]) -> int:
    """Run `action` with the client that the arguments ask for; an error becomes one line and exit status 1."""
    try:
        with Client(
            args.redis,
            pool=args.pool,
            tenant=getattr(args, "tenant", "default"),
            password_file=args.redis_password_file,
        ) as client:
            return action(client)
    except (Stream2LLMError, RedisError, OSError, ValueError) as error:
        print(f"stream2llm: {error}", file=sys.stderr)
        return 1
