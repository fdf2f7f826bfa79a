"""What docs/wire-protocol.md lists is what there is."""

from __future__ import annotations

from pathlib import Path

from stream2llm.errors import ErrorCode


def test_the_documentation_lists_exactly_the_codes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire-protocol.md").read_text()
    table = text[text.index("## Error codes") :]
    listed = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert listed == {str(code) for code in ErrorCode}
