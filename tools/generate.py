"""Writes every file that is generated from code; a test holds that they agree. usage: generate.py [--check]"""

import sys
from pathlib import Path

from stream2llm_operator.api import documents
from stream2llm_operator.status.reasons import status_page

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {
    "crds/stream2llm.io_streamingprefills.yaml": documents.crd_yaml,
    # Helm reads nothing outside its chart, so the chart has a copy.
    "helm/stream2llm/files/stream2llm.io_streamingprefills.yaml": documents.crd_yaml,
    "docs/reference/streamingprefill.md": documents.reference_page,
    "docs/reference/status.md": status_page,
}


def outdated() -> list[str]:
    """Paths, from the checkout, of the files that are not what the code makes."""
    return [
        path for path, make in GENERATED.items() if not (ROOT / path).is_file() or (ROOT / path).read_text() != make()
    ]


def main() -> int:
    changed = outdated()
    if "--check" in sys.argv[1:]:
        for path in changed:
            print(f"generate: {path} is not what the code makes; run `make generate`", file=sys.stderr)
        return 1 if changed else 0
    for path in changed:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(GENERATED[path]())
        print(f"generate: wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
