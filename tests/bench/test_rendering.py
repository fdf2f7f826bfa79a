"""`bench report`: one page of what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm.commands.main import main


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.json").write_text("{}")
    (folder / f"{name}.txt").write_text(text)


def test_a_page_holds_tables_and_pictures_in_its_order(tmp_path: Path) -> None:
    write(tmp_path, "zeta", "last")
    write(tmp_path, "policies", "a < b & c")
    write(tmp_path, "workloads", "first")
    (tmp_path / "workloads.png").write_bytes(b"picture")
    (tmp_path / "lonely.json").write_text("{}")
    assert main(["bench", "report", "--output", str(tmp_path), "--note", "made by <hand>"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert page.index(">first<") < page.index("a &lt; b &amp; c") < page.index(">last<")
    assert "data:image/png;base64,cGljdHVyZQ==" in page
    assert "made by &lt;hand&gt;" in page
    assert "lonely" not in page


def test_a_folder_without_results_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "report", "--output", str(tmp_path)]) == 1
    assert f"{tmp_path} has no results" in capsys.readouterr().err


def test_the_page_goes_where_it_is_told(tmp_path: Path) -> None:
    write(tmp_path, "plan", "x")
    page = tmp_path / "docs" / "page.html"
    assert main(["bench", "report", "--output", str(tmp_path), "--page", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
