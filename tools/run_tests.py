"""Runs lint and the test parts, independent ones side by side, and prints minutes per part.

usage: run_tests.py [PART...]      without arguments: everything but `kubernetes` and `long`

Two parts run at a time, each next one as soon as one ends; but never two that start real engines, which would fight for
cores and memory. Each part's output appears as one block when it ends; meanwhile a line a minute says what is at work.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
SUMMARY = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s.*$", re.MULTILINE)
COUNT = re.compile(r"(\d+) ([a-z]+)")
OUTCOMES = ("failed", "errors", "error", "passed", "skipped", "xfailed", "xpassed", "deselected", "warnings", "warning")


@dataclass(frozen=True, slots=True)
class Part:
    """One command whose success is one part of `make test`."""

    name: str
    command: tuple[str, ...]
    limit_minutes: float
    starts_engines: bool = False


@dataclass(slots=True)
class Result:
    part: Part
    seconds: float
    status: int
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.status == 0


def pytest_part(
    name: str,
    markers: str,
    limit_minutes: float,
    *arguments: str,
    within: tuple[str, ...] = (),
    starts_engines: bool = False,
) -> Part:
    """A part that runs the tests with these markers. A part without tests fails: something was lost.

    `within` is a command that runs what follows it, with something changed.
    """
    command = (*within, sys.executable, "-m", "pytest", "--timeout=1200", "--durations=5", "-m", markers, *arguments)
    return Part(name, command, limit_minutes, starts_engines)


LINT = Part("lint", ("tools/lint.sh",), 10)
FAST = pytest_part(
    "fast", "not engine and not simulated and not kubernetes and not autoscale and not e2e and not long", 25
)
SIMULATED = pytest_part("simulated", "simulated and not engine and not e2e and not long", 20)
DRIFT = pytest_part(
    "drift",
    "simulated and not engine and not e2e and not long",
    20,
    # Fewer histories than on the installed vLLM: what is looked for is a difference between the two.
    within=("env", "STREAM2LLM_TEST_HISTORIES=100", "tools/with_vllm_sources.sh"),
)
KUBERNETES = pytest_part("kubernetes", "kubernetes and not long", 90)
ENGINE = pytest_part("engine", "engine and not e2e and not long", 40, starts_engines=True)
# Delivery runs on the simulated executor (its few real pods are tiny), so it may run beside real engines.
DELIVERY_FOLDERS = ("tests/router", "tests/chaos")
DELIVERY = pytest_part("delivery", "e2e and not long", 30, *DELIVERY_FOLDERS)
E2E = pytest_part(
    "e2e", "e2e and not long", 45, *(f"--ignore={folder}" for folder in DELIVERY_FOLDERS), starts_engines=True
)
AUTOSCALE = pytest_part("autoscale", "autoscale", 90, "tests/autoscale", "--ignore=tests/autoscale/test_keda.py")
KEDA = pytest_part("keda", "autoscale", 90, "tests/autoscale/test_keda.py")
LONG = pytest_part("long", "long", 240, starts_engines=True)

EVERYDAY: tuple[Part, ...] = (LINT, ENGINE, FAST, E2E, DELIVERY, SIMULATED, DRIFT)
PARTS = {part.name: part for part in (*EVERYDAY, KUBERNETES, AUTOSCALE, KEDA, LONG)}
AT_A_TIME = 2


class Runner:
    """Runs parts in threads of this process and keeps the terminal readable."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.results: list[Result] = []
        self._terminal = threading.Lock()
        self._running: dict[str, tuple[float, subprocess.Popen[bytes]]] = {}
        self._waiting = list(parts)
        self._engines_at_work = False
        self._turn = threading.Condition()

    def run(self) -> None:
        """Runs all parts, `AT_A_TIME` at once and begun in order, to the end even after a failure."""
        threads = [threading.Thread(target=self._run_parts, daemon=True) for _ in range(AT_A_TIME)]
        for thread in threads:
            thread.start()
        next_word = time.monotonic() + 60
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() >= next_word:
                next_word += 60
                at_work = [f"{name} {(time.monotonic() - since) / 60:.0f} min" for name, (since, _) in self._snapshot()]
                self.say(f"test: at work: {', '.join(at_work)}")

    def stop(self) -> None:
        """Ends whatever is running, with all it has started."""
        for _, (_, process) in self._snapshot():
            end_group(process)

    def say(self, text: str) -> None:
        with self._terminal:
            print(text, flush=True)

    def _snapshot(self) -> list[tuple[str, tuple[float, subprocess.Popen[bytes]]]]:
        return list(self._running.items())

    def _run_parts(self) -> None:
        while (part := self._next()) is not None:
            try:
                self.results.append(self._run_part(part))
            finally:
                with self._turn:
                    self._engines_at_work &= not part.starts_engines
                    self._turn.notify_all()

    def _next(self) -> Part | None:
        """Takes the first waiting part that may start now, and waits for one; None if none is left."""
        with self._turn:
            while self._waiting:
                for part in self._waiting:
                    if not (part.starts_engines and self._engines_at_work):
                        self._waiting.remove(part)
                        self._engines_at_work |= part.starts_engines
                        return part
                self._turn.wait()
            return None

    def _run_part(self, part: Part) -> Result:
        self.say(f"test: {part.name} starts")
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{part.name}.log"
        started = time.monotonic()
        with log.open("wb") as output:
            # A session of its own, so that the end of a part is the end of every engine and server it started.
            process = subprocess.Popen(
                part.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            self._running[part.name] = (started, process)
            try:
                status = process.wait(timeout=part.limit_minutes * 60)
            except subprocess.TimeoutExpired:
                status = 124
                output.write(f"\n{part.name}: ended after its limit of {part.limit_minutes:g} minutes\n".encode())
            end_group(process)
            del self._running[part.name]
        text = log.read_text(encoding="utf-8", errors="replace")
        result = Result(part, time.monotonic() - started, status, counts(text))
        self.say(
            f"\n######## {part.name}: {'ok' if result.passed else f'FAILED (exit status {status})'}\n{text.rstrip()}\n"
        )
        return result


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a part's process and its children; harmless if they are gone."""
    for sign, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
        except (ProcessLookupError, PermissionError):
            break
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
    if process.poll() is None:
        process.wait()


def counts(output: str) -> dict[str, int]:
    """The figures of pytest's last summary line in `output`, e.g. {"passed": 12}; empty if there is none."""
    lines = SUMMARY.findall(output)
    return {word: int(number) for number, word in COUNT.findall(lines[-1])} if lines else {}


def closing_lines(results: Sequence[Result], seconds: float) -> str:
    """The table of parts and one summary line in pytest's words over all of them."""
    total: dict[str, int] = {}
    rows = [f"{'part':<12}{'minutes':>8}  result"]
    for result in results:
        verdict = ", ".join(
            ["ok" if result.passed else "FAILED", *(f"{number} {word}" for word, number in result.counts.items())]
        )
        rows.append(f"{result.part.name:<12}{result.seconds / 60:>8.1f}  {verdict}")
        for word, number in result.counts.items():
            total[word] = total.get(word, 0) + number
    broken = [result.part.name for result in results if not result.passed]
    if broken:
        rows.append(f"test: FAILED: {', '.join(broken)}")
    figures = ", ".join(f"{total[word]} {word}" for word in OUTCOMES if total.get(word) and word != "deselected")
    rows.append(f" {figures or 'no tests ran'} in {seconds:.2f}s ({seconds / 60:.1f} min) ".center(88, "="))
    return "\n".join(rows)


def main() -> int:
    names = sys.argv[1:]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"test: no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    runner = Runner([PARTS[name] for name in names] if names else EVERYDAY)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        runner.run()
    except (KeyboardInterrupt, SystemExit):
        runner.stop()
        print("test: interrupted", file=sys.stderr)
        return 130
    print(closing_lines(runner.results, time.monotonic() - started))
    return 0 if all(result.passed for result in runner.results) else 1


if __name__ == "__main__":
    sys.exit(main())
