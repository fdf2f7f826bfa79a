"""`stream2llm profile`: measures recompute and swap in this engine and writes a cost profile."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stream2llm_pod.serving.command import CannotServe, check_flags, check_model

if TYPE_CHECKING:
    from stream2llm.costprofile import CostProfile
    from stream2llm_pod.profiling.measuring import Measurements, Progress

DEFAULT_MAX_SECONDS = 300
MIN_SECONDS = 10
TERMINATION_MESSAGE_BYTES = 4096


class CannotProfile(Exception):
    """Why there is no profile, in words for whoever asked for one."""


class ProfileCommand:
    help = "measure prefill and swap of a model on this machine, and write a cost profile"
    takes_unknown_arguments = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        # An abbreviation could be the full name of one of vLLM's flags.
        parser.allow_abbrev = False
        parser.epilog = (
            "All other arguments go to vLLM as they are: give those that `serve` gets, for a profile holds for one "
            "model, data type, tensor parallel size, block size and token budget."
        )
        parser.add_argument("--model", required=True, metavar="M", help="model folder or Hugging Face name")
        parser.add_argument("--output", required=True, type=Path, metavar="F", help="where the profile is written")
        parser.add_argument(
            "--max-seconds",
            type=_seconds,
            default=DEFAULT_MAX_SECONDS,
            metavar="N",
            help=f"time for all of it, loading the model included (default {DEFAULT_MAX_SECONDS}); long prompts that "
            "do not fit are skipped, and named",
        )
        parser.add_argument(
            "--compact", action="store_true", help="write one line of at most 4,096 bytes, with fewer digits"
        )
        parser.add_argument(
            "--termination-message",
            type=Path,
            metavar="F",
            help="also write the compact profile here, or why there is none: Kubernetes' termination message",
        )
        parser.add_argument(
            "--no-plot", action="store_true", help="draw no picture of the curves beside the output (OUTPUT.png)"
        )
        parser.add_argument("--json", action="store_true", help="print the profile as one JSON object on stdout")

    def run(self, args: argparse.Namespace) -> int:
        try:
            profile, found = profile_model(args, list(getattr(args, "unknown", [])))
        except CannotProfile as error:
            print(f"stream2llm profile: {error}", file=sys.stderr)
            if args.termination_message is not None:
                _write_message(str(error), args.termination_message)
            return 1
        _show(args, profile, found)
        return 0


COMMAND = ProfileCommand()


def profile_model(args: argparse.Namespace, vllm_arguments: Sequence[str]) -> tuple[CostProfile, Measurements]:
    """Measure, and write the files asked for. Raises CannotProfile with a message that says what to do."""
    deadline_s = time.monotonic() + args.max_seconds
    _check_arguments(args, vllm_arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    with _stdout_to_stderr():
        profile, found = _measure(args, vllm_arguments, deadline_s)
    from stream2llm_pod.profiling.reporting import write

    try:
        write(profile.to_json(compact=True) + "\n" if args.compact else profile.to_json(), args.output)
    except OSError as error:
        raise CannotProfile(f"--output {args.output} cannot be written: {error.strerror}") from error
    if args.termination_message is not None:
        _write_message(profile.to_json(compact=True), args.termination_message)
    return profile, found


def _check_arguments(args: argparse.Namespace, vllm_arguments: Sequence[str]) -> None:
    """Everything that can be found wrong in a moment, before the model is loaded."""
    try:
        check_flags(vllm_arguments)
        check_model(args.model)
    except CannotServe as error:
        raise CannotProfile(str(error)) from error
    folder = args.output.absolute().parent
    if not folder.is_dir():
        raise CannotProfile(f"--output {args.output}: there is no folder {folder}")
    if args.output.is_dir():
        raise CannotProfile(f"--output {args.output} is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise CannotProfile(f"--output {args.output}: {folder} cannot be written to")


def _measure(
    args: argparse.Namespace, vllm_arguments: Sequence[str], deadline_s: float
) -> tuple[CostProfile, Measurements]:
    from stream2llm_pod.engine.loading import CannotLoad, load_platform

    try:
        load_platform()
    except CannotLoad as error:
        raise CannotProfile(str(error)) from error
    from stream2llm_pod.profiling.engine import MeasuredEngine, make_engine_config
    from stream2llm_pod.profiling.measuring import measure, to_curve

    print(f"loading {args.model}", file=sys.stderr, flush=True)
    started_s = time.monotonic()
    model = str(Path(args.model).expanduser()) if args.model.startswith("~") else args.model
    try:
        engine = MeasuredEngine(make_engine_config(model, vllm_arguments))
    except (ValueError, OSError, RuntimeError) as error:
        raise CannotProfile(f"vLLM does not start with this model and these arguments: {error}") from error
    try:
        loaded_s = time.monotonic() - started_s
        if time.monotonic() >= deadline_s:
            raise CannotProfile(
                f"loading the model took {loaded_s:.0f} s, and --max-seconds is {args.max_seconds}; allow more"
            )
        with _progress() as progress:
            found = measure(engine, clock=time.monotonic, deadline_s=deadline_s, progress=progress)
        if not found.prefill_ms:
            raise CannotProfile(f"nothing could be measured: {found.skipped[0].reason}; allow more with --max-seconds")
        profile = engine.profile(to_curve(found.prefill_ms), to_curve(found.swap_out_ms), to_curve(found.swap_in_ms))
        return profile, found
    finally:
        engine.close()


def _show(args: argparse.Namespace, profile: CostProfile, found: Measurements) -> None:
    from stream2llm_pod.profiling.reporting import to_crossings_text, to_figures, to_table

    written = [str(args.output)]
    if not args.no_plot:
        picture = args.output.with_suffix(".png")
        try:
            from stream2llm_pod.profiling.plotting import draw

            draw(profile, picture)
            written.append(str(picture))
        except ImportError:
            print("(no picture: it needs matplotlib, which stream2llm[bench] brings)", file=sys.stderr)
    if args.json:
        print(json.dumps(to_figures(profile, found)))
    else:
        print(f"{profile.model} on {profile.gpu}: milliseconds, medians")
        print(to_table(profile))
        print(to_crossings_text(profile))
    for skipped in found.skipped:
        print(f"skipped {skipped.tokens} tokens: {skipped.reason}", file=sys.stderr)
    print("written: " + ", ".join(written), file=sys.stderr)


def _write_message(text: str, path: Path) -> None:
    """Straight into the file: Kubernetes mounts it, so it cannot be replaced."""
    try:
        path.write_bytes(text.encode()[:TERMINATION_MESSAGE_BYTES])
    except OSError as error:
        print(f"--termination-message {path} cannot be written: {error.strerror}", file=sys.stderr)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """vLLM and its workers log to stdout, which is for the result."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal that rich can draw on, a line for each length anywhere else."""

    def say(done: int, total: int, outcome: str) -> None:
        print(f"{done}/{total}  {outcome}", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield say
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars
    except ImportError:
        yield say
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("measuring", total=None)
        yield lambda done, total, outcome: bars.update(task, completed=done, total=total, description=outcome)


def _seconds(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number of seconds, not {text!r}") from None
    if value < MIN_SECONDS:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_SECONDS}, not {value}")
    return value
