#!/usr/bin/env bash
# Writes images that build.sh has made into one archive, which `docker load` and `ctr images import` read. It is written
# anew only if an image has changed. usage: export.sh ARCHIVE IMAGE...
set -euo pipefail
archive=${1:?usage: export.sh ARCHIVE IMAGE...}
shift

if command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; then
  docker=yes
  ids=$(docker image inspect --format '{{.Id}}' "$@")
else
  docker=
  export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}
  ids=$(for image in "$@"; do buildah inspect --type image --format '{{.FromImageID}}' "$image"; done)
fi
if [ -f "$archive" ] && [ "$(cat "$archive.ids" 2>/dev/null)" = "$ids" ]; then exit; fi

echo "images: writing $# images to $archive" >&2
started=$SECONDS
rm -f "$archive.ids"
mkdir -p "$(dirname "$archive")"
if [ -n "$docker" ]; then
  docker save --output "$archive" "$@"
else
  layout=$(mktemp -d "$archive.XXXXXX")
  trap 'rm -rf "$layout"' EXIT
  # One layout for all, so that a layer they share is there once. Compressing takes longer than writing.
  for image in "$@"; do buildah push --quiet --disable-compression "$image" "oci:$layout:$image"; done
  tar --create --file "$archive" --directory "$layout" .
fi
echo "$ids" >"$archive.ids"
echo "images: written, $((SECONDS - started)) s" >&2
