"""A real Prometheus with the chart's own rules, whose windows may be shorter."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chart
import programs
import yaml
from components import Components

from stream2llm_bench.demo.ports import free_port

SCRAPE_MS = 15_000
WINDOWS_S = {"matureSeconds": 180, "rate": 120, "hold": 600}


@dataclass(frozen=True, slots=True)
class Speed:
    """All times of the loop divided by this; `tests/helm/test_rules.py` shows that the rules' answers scale with it."""

    factor: int

    def ms(self, milliseconds: float) -> str:
        return f"{round(milliseconds / self.factor)}ms"

    def seconds(self, seconds: float) -> int:
        return max(round(seconds / self.factor), 1)


class Prometheus:
    """Reads what `targets.json` in its folder names. Started and stopped by name in `components`."""

    NAME = "prometheus"

    def __init__(self, components: Components, folder: Path, speed: Speed) -> None:
        self._components, self._folder, self._speed = components, folder, speed
        self.port = free_port()
        self.targets = folder / "targets.json"
        self.rules = folder / "rules.yaml"
        self.configuration = folder / "prometheus.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self.write_targets("[]")
        self.rules.write_text(yaml.safe_dump({"groups": rule_groups(speed)}))
        self.configuration.write_text(json.dumps(self._configured()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise RuntimeError("the package prometheus is not installed: apt-get install prometheus")
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        data = f"--storage.tsdb.path={self._folder / 'data'}"
        self._components.start(self.NAME, [program, f"--config.file={self.configuration}", listen, data])
        self._components.wait("Prometheus", lambda: bool(self._get("/-/ready")))

    def stop(self) -> None:
        self._components.stop(self.NAME)

    def reload(self) -> None:
        """Read the rules again."""
        self._components.signal(self.NAME, signal.SIGHUP)

    def write_targets(self, text: str) -> None:
        if self.targets.exists() and self.targets.read_text() == text:
            return
        partial = self.targets.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(self.targets)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query; its samples. Raises OSError."""
        asked = urllib.parse.urlencode({"query": expression})
        answer = json.loads(self._get(f"/api/v1/query?{asked}"))
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The only sample's value, None where there is none, or no Prometheus."""
        try:
            found = self.query(expression)
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            body: bytes = answer.read()
        return body

    def _configured(self) -> dict[str, Any]:
        every = self._speed.ms(SCRAPE_MS)
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(self.rules)],
            "scrape_configs": [
                {
                    "job_name": "pools",
                    "honor_labels": True,
                    "file_sd_configs": [{"files": [str(self.targets)], "refresh_interval": "1s"}],
                }
            ],
        }


def rule_groups(speed: Speed) -> list[dict[str, Any]]:
    """The chart's recording rules, rendered by helm."""
    windows = {
        "matureSeconds": str(speed.seconds(WINDOWS_S["matureSeconds"])),
        "rate": f"{speed.seconds(WINDOWS_S['rate'])}s",
        "hold": f"{speed.seconds(WINDOWS_S['hold'])}s",
    }
    values = {"monitoring.rules.enabled": "true", "monitoring.rules.interval": speed.ms(SCRAPE_MS)}
    values |= {f"monitoring.rules.windows.{name}": value for name, value in windows.items()}
    helm = str(programs.ensure("helm")["helm"])
    command = [helm, "template", "s2l", str(chart.CHART), "-s", "templates/recording-rules.yaml"]
    command += [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    groups: list[dict[str, Any]] = yaml.safe_load(text)["spec"]["groups"]
    return groups
