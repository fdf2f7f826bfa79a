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

FAILED, CALLED_WRONGLY = 1, 2
"""Exit statuses; argparse has the second, too."""


def with_client(args: argparse.Namespace, action: Callable[[Client], int]) -> int:
    """Run `action` with the client that the arguments ask for. An error becomes one line, and exit status 2 if the
    arguments are wrong, a file among them that cannot be read or written, else 1."""
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
        status, message = FAILED, f"Redis: {explained(error)}"
    except Stream2LLMError as error:
        status, message = FAILED, str(error)
    except ValueError as error:
        status, message = CALLED_WRONGLY, str(error)
    except OSError as error:
        status, message = (FAILED if error.filename is None else CALLED_WRONGLY), str(error)
    print(f"stream2llm {args.command}: {' '.join(message.split())}", file=sys.stderr)
    return status
