"""Builds and fetches all that the tests on Kubernetes need, so that no test's time limit counts it."""

from __future__ import annotations

import os
import sys

import images
import node
import node_packages
import programs
import vllm_environment


def main() -> int:
    version = os.environ.get("STREAM2LLM_KUBERNETES", programs.NEWEST)
    try:
        programs.ensure("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm", kubernetes=version)
        if os.geteuid() != 0:
            programs.say("not root: tests with a node are skipped")
            return 0
        node_packages.ensure()
        programs.ensure("kube-scheduler", "kubelet", "kube-proxy", *node.PROGRAMS, kubernetes=version)
        vllm_environment.folder()
        images.archive()
    except programs.NotAvailable as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
