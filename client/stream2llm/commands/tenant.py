"""`stream2llm tenant`: the tenants that routers serve."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stream2llm.commands.connected import with_client
from stream2llm.connecting import RedisTLS, add_redis_arguments, connect
from stream2llm.keys import DEFAULT_TENANT, check_tenant


class TenantCommand:
    help = "add, list or remove the tenants of a pool"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("add", "list", "remove"))
        parser.add_argument("name", nargs="?", help="tenant, for add and remove")
        add_redis_arguments(parser, tenant=False)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _change(args, client.keys.tenants))


def _change(args: argparse.Namespace, key: str) -> int:
    if (args.name is None) != (args.action == "list"):
        raise ValueError("list takes no name" if args.name else f"{args.action} needs the name of a tenant")
    with connect(args.redis, args.redis_password_file, tls=RedisTLS.from_arguments(args)) as redis:
        if args.action == "list":
            members: Any = redis.smembers(key)
            for name in sorted(members):
                print(name.decode("utf-8", "replace"))
            if not members:
                _note(f"none: routers serve the tenant {DEFAULT_TENANT!r}")
            return 0
        tenant = check_tenant(args.name)
        if args.action == "add":
            changed = redis.sadd(key, tenant)
            if changed and tenant != DEFAULT_TENANT and redis.scard(key) == 1:
                _note(f"{tenant!r} is the first tenant; {DEFAULT_TENANT!r} is no longer served unless it is added too")
        else:
            changed = redis.srem(key, tenant)
    done = {"add": ("added", "was there already"), "remove": ("removed", "was not there")}[args.action]
    print(f"{tenant}: {done[0] if changed else done[1]}")
    return 0


def _note(text: str) -> None:
    print(f"({text})", file=sys.stderr)


COMMAND = TenantCommand()
