#!/usr/bin/env bash
# Makes sure buildah has the images' Python base: present, else pulled, else made from Debian's packages under the same
# name, so that the Dockerfile builds unchanged where no image registry can be reached. usage: base.sh IMAGE
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
image=${1:?usage: base.sh IMAGE}
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}

if [ -n "$(buildah images --quiet "$image" 2>/dev/null)" ]; then exit; fi
echo "images: pulling $image" >&2
if timeout 300 buildah pull --quiet "$image" >/dev/null 2>&1; then exit; fi

echo "images: no registry has answered; making a stand-in for $image with debootstrap" >&2
case $image in
*python:3.11-slim-bookworm) ;;
*)
  echo "images: error: the stand-in is Debian 12 with Python 3.11 and cannot replace $image" >&2
  exit 1
  ;;
esac
command -v debootstrap >/dev/null || "$here/../apt.sh" debootstrap
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$work/root" \
  >"$work/log" 2>&1 || {
  tail -n 5 "$work/log" >&2
  exit 1
}
ln -s python3 "$work/root/usr/bin/python"
rm -rf "$work"/root/var/cache/apt/archives/*.deb
tar -C "$work/root" -cf "$work/root.tar" .
printf 'FROM scratch\nADD root.tar /\nCMD ["python3"]\n' >"$work/Dockerfile"
buildah bud --quiet --file "$work/Dockerfile" --tag "docker.io/library/${image##*/}" "$work" >/dev/null
