"""What docs/wire-protocol.md lists is what there is."""

from __future__ import annotations

from pathlib import Path

from stream2llm.errors import ErrorCode


def test_the_documentation_lists_exactly_the_codes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire-protocol.md").read_text()
    table = text[text.index("## Error codes") :]
    listed = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert listed == {str(code) for code in ErrorCode}


def test_each_code_says_when_whether_it_is_the_end_and_what_to_do() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire-protocol.md").read_text()
    rows = [line for line in text[text.index("## Error codes") :].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert all(len(row) == 4 and all(row) for row in cells)
    assert {row[2] for row in cells} == {"yes", "no", "if it is the open", "rejected"}
