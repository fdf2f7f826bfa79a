"""What the commands that talk to Redis share: the client from the arguments, and errors as one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from redis.exceptions import RedisError

from stream2llm.client import Client
from stream2llm.connecting import RedisTLS, check_url, explained
from stream2llm.errors import Stream2LLMError
from stream2llm.keys import DEFAULT_TENANT


def with_client(args: argparse.Namespace, action: Callable[[Client], int]) -> int:
    """Run `action` with the client that the arguments ask for; an error becomes one line and exit status 1."""
    try:
        check_url(args.redis)
        with Client(
            args.redis,
            pool=args.pool,
            tenant=getattr(args, "tenant", DEFAULT_TENANT),
            password_file=args.redis_password_file,
            tls=RedisTLS.from_arguments(args),
        ) as client:
            return action(client)
    except BrokenPipeError:
        # Whoever read our output has gone, which `main` handles for all commands.
        raise
    except RedisError as error:
        message = f"Redis: {explained(error)}"
    except (Stream2LLMError, OSError, ValueError) as error:
        message = str(error)
    print(f"stream2llm {args.command}: {' '.join(message.split())}", file=sys.stderr)
    return 1
