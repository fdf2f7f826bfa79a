"""The `stream2llm` command: finds its sub-commands by entry points, so that each package brings its own."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import EntryPoint, entry_points, version

from stream2llm.commands.command import Command
from stream2llm.commands.interrupting import exit_status

GROUP = "stream2llm.commands"
EXTRA_OF_PACKAGE = {
    "stream2llm_router": "router",
    "stream2llm_pod": "pod",
    "stream2llm_operator": "operator",
    "stream2llm_bench": "bench",
}


def _load(entry_point: EntryPoint) -> Command:
    command: Command = entry_point.load()
    return command


def _missing_extra(entry_point: EntryPoint, error: ImportError) -> str:
    extra = EXTRA_OF_PACKAGE.get(entry_point.module.split(".")[0])
    remedy = f"install stream2llm[{extra}]" if extra else "install stream2llm again"
    return f"stream2llm {entry_point.name}: {remedy} ({error})"


def main(arguments: list[str] | None = None) -> int:
    """Run the sub-command named first and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    parser = argparse.ArgumentParser(
        prog="stream2llm", description="Streaming prefill for retrieval-augmented prompts."
    )
    parser.add_argument("--version", action="version", version=f"stream2llm {version('stream2llm')}")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in sorted(commands):
        if chosen in commands and name != chosen:
            # Only the help lists all of them, so one package's trouble is not another command's.
            choices.add_parser(name)
            continue
        try:
            command = _load(commands[name])
        except ImportError as error:
            if name == chosen:
                print(_missing_extra(commands[name], error), file=sys.stderr)
                return 2
            choices.add_parser(name, help="(its extra is not installed)")
            continue
        child = choices.add_parser(name, help=command.help, description=command.help)
        if name == chosen:
            command.add_arguments(child)
        child.set_defaults(run=command.run)
    # `serve` hands what it does not know to vLLM, so unknown arguments are the command's to judge.
    known, unknown = parser.parse_known_args(arguments)
    if unknown and not getattr(_load(commands[known.command]), "takes_unknown_arguments", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    known.unknown = unknown
    try:
        return int(known.run(known))
    except KeyboardInterrupt as error:
        return exit_status(error)
    except BrokenPipeError:
        # As a program that SIGPIPE ends; the interpreter's last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ImportError as error:
        print(_missing_extra(commands[known.command], error), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
