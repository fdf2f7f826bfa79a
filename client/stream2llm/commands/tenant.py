"""`stream2llm tenant`: the tenants that routers serve, and what each may do."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from stream2llm.access import UserRules, pod_rules, router_rules, tenant_rules
from stream2llm.commands.connected import with_client
from stream2llm.connecting import RedisTLS, add_redis_arguments, connect
from stream2llm.keys import DEFAULT_TENANT, PoolKeys, check_tenant
from stream2llm.tenant_limits import MAX_WEIGHT, MIN_WEIGHT, checked_weight
from stream2llm.tokens import TokenRecord, new_token, parse_record, record_of

ACTIONS = ("add", "list", "remove", "acl", "token")
ROLES = ("tenant", "router", "pod")
_EPILOG = """\
acl prints lines for Redis's aclfile: of one tenant, of a router or pod (--role), or without a name of all of them.
token makes an HTTP token, prints it this once and stores its digest; --list and --revoke show and end tokens.
"""


class TenantCommand:
    help = "add, list or remove tenants; print their Redis ACL rules; make their HTTP tokens"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EPILOG
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument("action", choices=ACTIONS)
        parser.add_argument("name", nargs="?", help="tenant")
        limits = parser.add_argument_group("add", "each is kept as it is where it is not given")
        limits.add_argument("--weight", type=_weight, metavar="W", help="share against other tenants (default 1)")
        limits.add_argument(
            "--max-open-streams", type=_whole, metavar="N", help="open streams at a time; 0 for no limit (default 0)"
        )
        limits.add_argument(
            "--max-open-bytes", type=_whole, metavar="N", help="bytes of its open streams; 0 for no limit (default 0)"
        )
        acl = parser.add_argument_group("acl")
        acl.add_argument("--role", choices=ROLES, default="tenant", help="whose rules (default: the tenant's)")
        acl.add_argument("--user", metavar="NAME", help="name of the Redis user (default: NAMESPACE_POOL_TENANT)")
        acl.add_argument(
            "--user-password-file",
            metavar="FILE",
            help="the user's password; where there is no such file, one is made and written to it",
        )
        acl.add_argument("--setuser", action="store_true", help="print ACL SETUSER commands instead")
        token = parser.add_argument_group("token")
        token.add_argument("--tokens-file", metavar="FILE", help="store the digest in this file instead of Redis")
        token.add_argument("--list", action="store_true", help="list the tenant's tokens, or all")
        token.add_argument("--revoke", metavar="ID", help="end the token whose digest begins with ID, as listed")
        add_redis_arguments(parser, tenant=False)

    def run(self, args: argparse.Namespace) -> int:
        actions = {"acl": _acl, "token": _token}
        action = actions.get(args.action, _change)
        return with_client(args, lambda client: action(args, client.keys))


@contextmanager
def _redis(args: argparse.Namespace) -> Iterator[redis.Redis]:
    with connect(args.redis, args.redis_password_file, tls=RedisTLS.from_arguments(args)) as client:
        yield client


def _change(args: argparse.Namespace, keys: PoolKeys) -> int:
    if (args.name is None) != (args.action == "list"):
        raise ValueError("list takes no name" if args.name else f"{args.action} needs the name of a tenant")
    with _redis(args) as client:
        if args.action == "list":
            members = _tenants(client, keys)
            for name in members:
                print(name)
            if not members:
                _note(f"none: routers serve the tenant {DEFAULT_TENANT!r}")
            return 0
        tenant = check_tenant(args.name)
        if args.action == "add":
            changed = client.sadd(keys.tenants, tenant)
            limits = {name: getattr(args, name) for name in ("weight", "max_open_streams", "max_open_bytes")}
            given: Any = {name: value for name, value in limits.items() if value is not None}
            if given:
                client.hset(keys.limits(tenant), mapping=given)
            if changed and tenant != DEFAULT_TENANT and client.scard(keys.tenants) == 1:
                _note(f"{tenant!r} is the first tenant; {DEFAULT_TENANT!r} is no longer served unless it is added too")
        else:
            changed = client.srem(keys.tenants, tenant)
            client.delete(keys.limits(tenant))
            ended = [record.digest for record in _records(client, keys) if record.tenant == tenant]
            if ended:
                client.hdel(keys.tokens, *ended)
                _note(f"{len(ended)} tokens of {tenant!r} are revoked")
    done = {"add": ("added", "was there already"), "remove": ("removed", "was not there")}[args.action]
    print(f"{tenant}: {done[0] if changed else done[1]}")
    return 0


def _weight(text: str) -> float:
    try:
        return checked_weight(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {text!r}"
        ) from None


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


def _acl(args: argparse.Namespace, keys: PoolKeys) -> int:
    for user in _users(args, keys):
        print(user.command() if args.setuser else user.aclfile_line())
    if not args.user_password_file:
        _note("no password is set yet: give --user-password-file, or add >PASSWORD yourself")
    return 0


def _users(args: argparse.Namespace, keys: PoolKeys) -> list[UserRules]:
    if args.role != "tenant":
        if args.name:
            raise ValueError(f"--role {args.role} takes no tenant")
        users = [{"router": router_rules, "pod": pod_rules}[args.role](keys, args.user)]
    elif args.name:
        users = [tenant_rules(keys, args.name, args.user)]
    elif args.user or args.user_password_file:
        raise ValueError("--user and --user-password-file are for one user: name a tenant, or give --role")
    else:
        with _redis(args) as client:
            tenants = _tenants(client, keys) or [DEFAULT_TENANT]
        return [router_rules(keys), pod_rules(keys), *(tenant_rules(keys, tenant) for tenant in tenants)]
    if not args.user_password_file:
        return users
    password = _password(Path(args.user_password_file))
    return [user.with_password(password) for user in users]


def _password(file: Path) -> str:
    """The password in the file; a new one is made if there is no file. Only its owner may read that."""
    try:
        password = file.read_text(encoding="utf-8").rstrip("\n")
    except FileNotFoundError:
        password = secrets.token_urlsafe(32)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as output:
            output.write(password + "\n")
        _note(f"a new password is in {file}")
    if not password:
        raise ValueError(f"{file} holds no password")
    return password


def _token(args: argparse.Namespace, keys: PoolKeys) -> int:
    if args.list or args.revoke:
        if args.tokens_file:
            raise ValueError("--list and --revoke are for tokens in Redis; a file is edited")
        with _redis(args) as client:
            return _revoke(args, client, keys) if args.revoke else _list_tokens(args, client, keys)
    if args.name is None:
        raise ValueError("token needs the name of a tenant")
    token = new_token()
    record = record_of(token, args.name)
    if args.tokens_file:
        with Path(args.tokens_file).open("a", encoding="utf-8") as output:
            output.write(record.line() + "\n")
    else:
        with _redis(args) as client:
            client.hset(keys.tokens, record.digest, record.value())
            if record.tenant not in (_tenants(client, keys) or [DEFAULT_TENANT]):
                _note(f"{record.tenant!r} is not served yet: stream2llm tenant add {record.tenant}")
    print(token)
    _note(f"token {record.name} of {record.tenant!r}; it is stored as a digest and cannot be shown again")
    return 0


def _list_tokens(args: argparse.Namespace, client: redis.Redis, keys: PoolKeys) -> int:
    for record in sorted(_records(client, keys), key=lambda record: (record.tenant, record.created_ms)):
        if args.name in (None, record.tenant):
            made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created_ms / 1000))
            print(f"{record.name}  {made}  {record.tenant}")
    return 0


def _revoke(args: argparse.Namespace, client: redis.Redis, keys: PoolKeys) -> int:
    found = [record for record in _records(client, keys) if record.digest.startswith(args.revoke)]
    found = [record for record in found if args.name in (None, record.tenant)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} tokens begin with {args.revoke!r}; `token --list` shows them")
    client.hdel(keys.tokens, found[0].digest)
    print(f"{found[0].tenant}: token {found[0].name} is revoked")
    return 0


def _records(client: redis.Redis, keys: PoolKeys) -> list[TokenRecord]:
    stored: Any = client.hgetall(keys.tokens)
    records = []
    for digest, value in stored.items():
        try:
            records.append(parse_record(digest.decode("ascii", "replace"), value))
        except ValueError as error:
            _note(str(error))
    return records


def _tenants(client: redis.Redis, keys: PoolKeys) -> list[str]:
    members: Any = client.smembers(keys.tenants)
    return sorted(name.decode("utf-8", "replace") for name in members)


def _note(text: str) -> None:
    print(f"({text})", file=sys.stderr)


COMMAND = TenantCommand()
