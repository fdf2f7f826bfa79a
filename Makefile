# Everything a checkout can do. `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast cluster test-cluster test-autoscale test-long chaos lint images images-pod docs generate lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with everything in it (a second run takes no time)
	@tools/setup.sh

demo: setup ## set up, then stream crawled pages into a question on a small real model, and compare with waiting
	@.venv/bin/stream2llm demo $(ARGS)

test: setup ## set up, then run lint and all tests but the long ones and those on a cluster (what CI runs)
	@.venv/bin/python tools/run_tests.py

test-fast: setup ## the tests that start neither an engine nor our processes (seconds)
	@.venv/bin/python tools/run_tests.py fast

cluster: setup ## a real one-node Kubernetes with our chart and a CPU pool in it, until Ctrl-C (root, no Docker)
	@.venv/bin/python tests/cluster/up.py $(ARGS)

test-cluster: setup ## the tests on a real Kubernetes; those with a node need root (builds it first: 20 minutes, once)
	@.venv/bin/python tests/cluster/prepare.py
	@.venv/bin/python tools/run_tests.py kubernetes

test-autoscale: setup ## load rises and falls with a real KEDA, Prometheus and our pods (builds KEDA first: 20 minutes, once)
	@.venv/bin/python tests/autoscale/prepare.py
	@.venv/bin/python tools/run_tests.py keda autoscale

test-long: setup ## thousands of histories and long soaks (an hour and more)
	@.venv/bin/python tools/run_tests.py long

chaos: setup ## kill and stop pods, routers and Redis under load (CHAOS_STREAMS=1000, CHAOS_SEED=… repeats a run)
	@.venv/bin/python -m pytest tests/chaos -m "e2e and not long" -s --timeout=3600

lint: setup ## formatting, lint, types, import rules, links in the documentation
	@tools/lint.sh

images: ## build the images of router and operator (Docker, or buildah where there is none) and run each once
	@tools/images/build.sh router -- route --help
	@tools/images/build.sh operator -- operator --help

images-pod: ## build the pod's image on the CPU base (some minutes, 7 GB) and run it once
	@tools/images/build.sh pod -- serve --help

docs: setup ## check that the documentation's links lead somewhere
	@.venv/bin/python tools/check_links.py

generate: setup ## write the CRD and the reference pages again from the operator's types
	@.venv/bin/python tools/generate.py

lock: ## resolve requirements/*.lock again (ARGS=--upgrade for newer versions, ARGS='-P NAME' for one)
	@tools/lock.sh $(ARGS)

clean: ## remove .venv and everything built or measured here (the cache in your home stays)
	rm -rf .venv .setup.lock build dist bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
