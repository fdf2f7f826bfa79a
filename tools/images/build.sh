#!/usr/bin/env bash
# Builds one target of the Dockerfile and runs it once: with Docker if its daemon answers, else with buildah as root.
# usage: build.sh [--file DOCKERFILE] [--context FOLDER] TARGET [-- ARGUMENT...]
# Environment: PYTHON_IMAGE replaces the Python base, POD_BASE that of the pod (the stage vllm-cpu), IMAGE_TAG the tag (latest).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
file=Dockerfile
context=.
while [ $# -gt 0 ]; do
  case $1 in
  --file) file=$2 ;;
  --context) context=$2 ;;
  *) break ;;
  esac
  shift 2
done
target=${1:?usage: build.sh [--file DOCKERFILE] [--context FOLDER] TARGET [-- ARGUMENT...]}
shift
if [ "${1:-}" = -- ]; then shift; fi

python_image=${PYTHON_IMAGE:-python:3.11-slim-bookworm}
image=localhost/stream2llm-$target:${IMAGE_TAG:-latest}
arguments=(--file "$file" --target "$target" --tag "$image" --build-arg "PYTHON_IMAGE=$python_image")
arguments+=(--build-arg "POD_BASE=${POD_BASE:-vllm-cpu}")
started=$SECONDS

if command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; then
  echo "images: building $image with Docker" >&2
  docker build "${arguments[@]}" "$context"
  if [ $# -gt 0 ]; then docker run --rm "$image" "$@"; fi
  echo "images: $image is built and runs, $((SECONDS - started)) s" >&2
  exit
fi

if [ "$(id -u)" != 0 ]; then
  echo "images: error: no Docker daemon answers, and building without one (buildah) needs root" >&2
  exit 1
fi
command -v buildah >/dev/null || "$here/../apt.sh" buildah crun
# chroot isolation works inside containers too, where a nested runtime is often forbidden.
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}
"$here/base.sh" "$python_image"

# pip inside the build gets what pip on this machine knows of certificates and mirrors. It is mounted for the build and
# is in no layer of the image.
work=$(mktemp -d)
container=
cleanup() {
  if [ -n "$container" ]; then buildah rm "$container" >/dev/null; fi
  rm -rf "$work"
}
trap cleanup EXIT
mounts=()
echo "[global]" >"$work/pip.conf"
setting() { python3 -m pip --disable-pip-version-check config get "global.$1" 2>/dev/null || true; }
certificates=${PIP_CERT:-$(setting cert)}
certificates=${certificates:-${SSL_CERT_FILE:-}}
if [ -n "$certificates" ]; then
  cp "$certificates" "$work/certificates.pem"
  echo "cert = /run/build-certificates.pem" >>"$work/pip.conf"
  mounts+=(--volume "$work/certificates.pem:/run/build-certificates.pem:ro")
fi
index=${PIP_INDEX_URL:-$(setting index-url)}
if [ -n "$index" ]; then echo "index-url = $index" >>"$work/pip.conf"; fi
mounts+=(--volume "$work/pip.conf:/etc/pip.conf:ro")

echo "images: building $image with buildah" >&2
buildah bud --layers --pull-never "${mounts[@]}" "${arguments[@]}" "$context"
echo "images: $image is built, $((SECONDS - started)) s" >&2

if [ $# -gt 0 ]; then
  container=$(buildah from --pull-never "$image")
  echo "images: running stream2llm $* in it" >&2
  # `buildah run` applies the image's user and environment, and not its entry point.
  buildah run "$container" -- stream2llm "$@"
  echo "images: $image runs as $(buildah run "$container" -- id -un)" >&2
fi
