"""`stream2llm simulate`: one workload, one policy, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stream2llm_bench.options import above_zero, at_least_one, seed
from stream2llm_bench.simulating.hardware import BUDGETS, DEFAULT_BUDGET_TOKENS, HARDWARE, find_hardware

if TYPE_CHECKING:
    from stream2llm_bench.simulating.outcome import Outcome
    from stream2llm_bench.workloads.streams import Stream

WORKLOADS = ("crawler", "anns")
STREAMING, NON_STREAMING = MODES = ("streaming", "non-streaming")
DEFAULT_QPS = 1.0


class SimulateCommand:
    """Sub-command `simulate`."""

    help = "the real scheduler on simulated hardware: time to first token in virtual time"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        what = parser.add_argument_group("what arrives")
        what.add_argument("--workload", choices=WORKLOADS, default="crawler", help="default: crawler")
        what.add_argument(
            "--scenario", metavar="NAME|FILE", help="a scenario (YAML) in place of --workload; `list` names ours"
        )
        what.add_argument(
            "--trace", type=Path, metavar="DIR", help="traces of the paper's artifact in place of generated streams"
        )
        what.add_argument("--qps", type=above_zero, metavar="Q", help="retrievals a second (default: 1)")
        what.add_argument(
            "--requests", type=at_least_one, metavar="N", help="how many (default: as many as published: 4309, 500)"
        )
        what.add_argument(
            "--delay-multiplier", type=above_zero, default=1.0, metavar="N", help="retrieval takes so much longer"
        )
        what.add_argument("--seed", type=seed, default=42, metavar="S", help="of streams and arrivals (default: 42)")
        how = parser.add_argument_group("how it is served")
        how.add_argument(
            "--policy",
            default="srpf",
            metavar="P",
            help="as with serve; also stock, random, reverse, artifact-default, -fcfs, -lcas, -mcps (default: srpf)",
        )
        how.add_argument("--preemption", default="recompute", metavar="K", help="cost, recompute or swap")
        how.add_argument("--mode", choices=MODES, default=STREAMING, help="default: streaming")
        how.add_argument("--hardware", default="h200-tp2", metavar="H", help=f"one of {', '.join(HARDWARE)}")
        how.add_argument("--kv-tokens", type=at_least_one, metavar="N", help="KV memory (default: the hardware's)")
        how.add_argument("--budget-tokens", type=at_least_one, metavar="N", help="tokens a step (2048, anns 8192)")
        parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

    def run(self, args: argparse.Namespace) -> int:
        from stream2llm_bench.failing import Unavailable
        from stream2llm_bench.workloads.scenarios import load_scenario, names

        if args.scenario == "list":
            for name in names():
                print(f"{name:18} {load_scenario(name).description}")
            return 0
        try:
            find_hardware(args.hardware)
            streams = draw(args)
            outcome = simulate(args, streams)
        except (ValueError, Unavailable) as error:
            print(f"stream2llm simulate: {error}", file=sys.stderr)
            return 2
        except RuntimeError as error:
            print(f"stream2llm simulate: the run failed: {error}", file=sys.stderr)
            return 1
        print(json.dumps(outcome.figures()) if args.json else to_text(outcome))
        return 0


def draw(args: argparse.Namespace) -> list[Stream]:
    """The streams that the arguments ask for. Raises ValueError."""
    from dataclasses import replace

    from stream2llm_bench.workloads import scenarios, traces

    if args.trace is not None:
        if args.scenario is not None:
            raise ValueError("--trace and --scenario exclude each other")
        return scenarios.arriving(
            [stream.slowed(args.delay_multiplier) for stream in traces.load(args.workload, args.trace, args.requests)],
            args.qps or DEFAULT_QPS,
            args.seed,
        )
    if args.scenario is None:
        scenario = scenarios.plain(args.workload, args.qps or DEFAULT_QPS, args.requests, args.delay_multiplier)
    else:
        scenario = scenarios.load_scenario(args.scenario)
        parts = tuple(
            replace(part, delay_multiplier=part.delay_multiplier * args.delay_multiplier) for part in scenario.parts
        )
        scenario = replace(
            scenario, parts=parts, qps=args.qps or scenario.qps, requests=args.requests or scenario.requests
        )
    return scenario.draw(args.seed)


def simulate(args: argparse.Namespace, streams: list[Stream]) -> Outcome:
    """One run. Raises ValueError for arguments that cannot be, RuntimeError for a run that failed."""
    from stream2llm_bench.progress import Progress, counting
    from stream2llm_bench.requiring import check_vllm_can_load

    check_vllm_can_load()
    from stream2llm_bench.simulating import artifact
    from stream2llm_bench.simulating.engine import STOCK, Setting, SimulatedEngine
    from stream2llm_bench.simulating.peers import registered
    from stream2llm_pod.scheduling.policies import POLICIES
    from stream2llm_pod.scheduling.victims import PREEMPTION_KINDS

    with registered():
        for option, value, known in (
            ("--policy", args.policy, (*POLICIES, STOCK, *artifact.ARTIFACT)),
            ("--preemption", args.preemption, PREEMPTION_KINDS),
        ):
            if value not in known:
                raise ValueError(f"{option} {value!r} is not known; choose one of {', '.join(known)}")
        budget_tokens = args.budget_tokens
        if budget_tokens is None:
            budget_tokens = DEFAULT_BUDGET_TOKENS if args.scenario else BUDGETS[args.workload]
        setting = Setting(
            find_hardware(args.hardware),
            policy=args.policy,
            preemption=args.preemption,
            streaming=args.mode == STREAMING,
            budget_tokens=budget_tokens,
            kv_tokens=args.kv_tokens,
        )
        say = Progress()
        run = artifact.run
        if args.policy not in artifact.ARTIFACT:
            say("starting vLLM's engine core without a model")
            run = SimulatedEngine().run
        with counting(say, f"{args.policy}, {len(streams)} streams", len(streams)) as answered:
            return run(streams, setting, answered)


def to_text(outcome: Outcome) -> str:
    """The figures for people."""
    figures = outcome.figures()
    lines = []
    for title, name in (
        ("first token after the last message, ms", "ttft_ms"),
        ("first token after the question, ms", "open_to_first_token_ms"),
    ):
        shown = "  ".join(f"{key} {value:,.1f}" for key, value in figures[name].items())
        lines.append(f"{title}: {shown}")
    for tenant, own in figures.get("tenants", {}).items():
        shown = "  ".join(f"{key} {value:,.1f}" for key, value in own["ttft_ms"].items())
        lines.append(f"  {tenant}, {own['requests']} requests: {shown}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in figures["preemptions"].items())
    lines.append(f"preemptions: {kinds}; {figures['recomputed_tokens']:,} tokens recomputed")
    lines.append(f"tokens invalidated by updates: {figures['invalidated_tokens']:,}")
    lines.append(
        f"{figures['requests']} requests in {figures['trace_completion_s']:,.1f} s of virtual time, {figures['steps']} "
        f"steps; simulated in {figures['wall_s']:.1f} s"
    )
    return "\n".join(lines)


COMMAND = SimulateCommand()
