"""Builds and fetches all that the tests of autoscaling need, so that no test's time limit counts it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cluster"))

import foreign_crds
import keda
import programs

NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm", "keda-operator", "keda-adapter")


def main() -> int:
    if shutil.which("prometheus") is None:
        print("autoscale: error: prometheus is missing: apt-get install prometheus", file=sys.stderr)
        return 1
    try:
        programs.ensure(*NEEDED)
        for plural in keda.KINDS:
            foreign_crds.crd(plural)
    except programs.NotAvailable as error:
        print(f"autoscale: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
