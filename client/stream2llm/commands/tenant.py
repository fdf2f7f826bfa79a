"""`stream2llm tenant`: the tenants that routers serve."""

from __future__ import annotations

import argparse
from typing import Any

from stream2llm.client import Client
from stream2llm.commands.connected import with_client
from stream2llm.connecting import add_redis_arguments, connect
from stream2llm.keys import check_tenant


class TenantCommand:
    help = "add, list or remove the tenants of a pool"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("add", "list", "remove"))
        parser.add_argument("name", nargs="?", help="tenant, for add and remove")
        add_redis_arguments(parser, tenant=False)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _change(args, client))


def _change(args: argparse.Namespace, client: Client) -> int:
    with connect(args.redis, args.redis_password_file) as redis:
        if args.action == "list":
            names: Any = redis.smembers(client.keys.tenants)
            print("\n".join(sorted(name.decode() for name in names)) or "(none: routers serve the tenant default)")
            return 0
        if args.name is None:
            raise ValueError(f"tenant {args.action} needs a name")
        tenant = check_tenant(args.name)
        change = redis.sadd if args.action == "add" else redis.srem
        print(f"{tenant}: {'done' if change(client.keys.tenants, tenant) else 'nothing to do'}")
    return 0


COMMAND = TenantCommand()
