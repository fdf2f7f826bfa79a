"""`stream2llm --version`."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from stream2llm.commands.main import main


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"stream2llm {version('stream2llm')}\n"
