"""The chart through a real helm: strict values, valid manifests, and rights that match what the operator watches."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import programs
import pytest
import yaml

from stream2llm_operator.handling import CHILDREN, NODES, PODS, RESOURCES

pytestmark = pytest.mark.kubernetes

CHART = Path(__file__).resolve().parent.parent.parent / "helm" / "stream2llm"
KUBERNETES_VERSIONS = ("1.34", "1.37")
EVERYTHING = (
    *("--set", "valkey.enabled=true", "--set", "operator.replicas=2", "--set", "images.registry=registry.example/team"),
    *("--set", "images.pullSecrets={registry}", "--set", "monitoring.serviceMonitor.enabled=true"),
    *("--set", r"monitoring.namespaceLabels.kubernetes\.io/metadata\.name=monitoring"),
    *("--set", "operator.podAnnotations.team=search", "--set", "monitoring.podMonitor.enabled=true"),
    *("--set", "monitoring.rules.enabled=true", "--set", "monitoring.alerts.enabled=true"),
)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = programs.ensure("helm")["helm"]
    return subprocess.run([str(program), *arguments], capture_output=True, text=True)


def rendered(*arguments: str) -> list[dict[str, Any]]:
    result = helm("template", "s2l", str(CHART), "--namespace", "system", *arguments)
    assert result.returncode == 0, result.stderr
    return [manifest for manifest in yaml.safe_load_all(result.stdout) if manifest]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def test_lint_is_silent() -> None:
    result = helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("arguments", [(), EVERYTHING, ("--set", "operator.namespaces={a,b}")])
def test_manifests_are_valid_in_the_oldest_and_the_newest_kubernetes(version: str, arguments: tuple[str, ...]) -> None:
    manifests = rendered(*arguments)
    assert len(manifests) > 8
    for manifest in manifests:
        if manifest["kind"] not in ("CustomResourceDefinition", "ServiceMonitor", "PrometheusRule"):
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("operator.replica=2", "additional properties 'replica' not allowed"),
        ("operatr.replicas=2", "additional properties 'operatr' not allowed"),
        ("operator.replicas=-1", "minimum: got -1, want 0"),
        ("images.pullPolicy=Sometimes", "value must be one of"),
        ("operator.namespaces={Upper}", "does not match pattern"),
        ("valkey.storage=lots", "does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused(value: str, words: str) -> None:
    result = helm("template", "s2l", str(CHART), "--set", value)
    assert result.returncode != 0
    assert words in result.stderr


def test_crd_is_upgraded_with_the_chart_and_stays_when_it_goes() -> None:
    (crd,) = of_kind(rendered(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(rendered("--set", "crds.install=false"), "CustomResourceDefinition") == []


def verbs(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_what_is_watched_may_be_watched() -> None:
    role = next(role for role in of_kind(rendered(), "ClusterRole") if role["metadata"]["name"] == "s2l-stream2llm")
    granted = verbs(role)
    for group, _, plural in (*CHILDREN, PODS, NODES, RESOURCES):
        assert {"list", "watch"} <= granted[group, plural]
    assert all("*" not in allowed for allowed in granted.values())
    assert not any(resource == "secrets" for _, resource in granted)


def test_with_namespaces_there_are_no_rights_anywhere_else() -> None:
    manifests = rendered("--set", "operator.namespaces={a,b}", "--set", "aggregatedRoles=false")
    assert of_kind(manifests, "ClusterRole") == []
    assert of_kind(manifests, "ClusterRoleBinding") == []
    roles = {
        (role["metadata"]["namespace"], role["metadata"]["name"])
        for role in of_kind(manifests, "Role")
        if "namespace" in role["metadata"]
    }
    assert roles == {("a", "s2l-stream2llm"), ("b", "s2l-stream2llm")}
    (deployment,) = of_kind(manifests, "Deployment")
    environment = {
        each["name"]: each.get("value") for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environment["STREAM2LLM_NAMESPACES"] == "a,b"


def test_images_are_the_chart_s_version_behind_the_registry() -> None:
    (deployment,) = of_kind(rendered("--set", "images.registry=registry.example/team"), "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container["image"] == f"registry.example/team/stream2llm-operator:{version}"
    assert environment["STREAM2LLM_IMAGE_CUDA"] == f"registry.example/team/stream2llm-pod:{version}"
    assert environment["STREAM2LLM_IMAGE_CPU"] == f"registry.example/team/stream2llm-pod:{version}-cpu"
    assert environment["STREAM2LLM_IMAGE_ROUTER"] == f"registry.example/team/stream2llm-router:{version}"


def test_notes_name_the_valkey_that_was_installed() -> None:
    result = helm(
        "install", "s2l", str(CHART), "--dry-run=client", "--namespace", "system", "--set", "valkey.enabled=true"
    )
    assert "redis://s2l-stream2llm-valkey.system:6379" in result.stdout, result.stderr
