"""The table of capabilities in the documents is what the drivers declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tool import load_tool


def test_the_table_is_what_the_drivers_declare(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = load_tool("make_provider_table")
    assert tool.main(["--check"]) == 0
    page = tmp_path / "providers.md"
    page.write_text(tool.PAGE.read_text("utf-8").replace("| `folder` | os |", "| `folder` | magic |"), "utf-8")
    monkeypatch.setattr(tool, "PAGE", page)
    assert tool.main(["--check"]) == 1
    assert "python tools/make_provider_table.py" in capsys.readouterr().err
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
