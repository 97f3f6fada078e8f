"""The tables of drivers in the documents agree with the drivers' declarations and their libraries' settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tool_scripts import load_tool


@pytest.mark.parametrize(("file", "right", "wrong"), [
    ("reference/drivers.md", "| `folder` | os |", "| `folder` | magic |"),
    ("reference/surroundings.md", "allow_agent=False", "magic"),
])  # fmt: skip
def test_table_agrees_with_the_drivers(
    file: str,
    right: str,
    wrong: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = load_tool("make_driver_tables")
    assert tool.main(["--check"]) == 0
    for page in tool.MADE:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(tool.DOCS / page, tmp_path / page)
    monkeypatch.setattr(tool, "DOCS", tmp_path)
    (tmp_path / file).write_text((tmp_path / file).read_text("utf-8").replace(right, wrong), "utf-8")
    assert tool.main(["--check"]) == 1
    assert f"docs/{file} is out of date: run python tools/make_driver_tables.py" in capsys.readouterr().err
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
