"""Fixtures of the provider tests: two drivers of their own, in this process and in generated projects."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cloudbench import drivers
from tests.fleet.harness import Lab, lab_in

HERE = Path(__file__).parent
REGISTER = """
from pytest_cloudbench import drivers
drivers._DRIVERS = {**drivers._DRIVERS, "mirror": "mirror:Mirror", "tiny": "tiny:Tiny"}
"""


@pytest.fixture(autouse=True)
def registered_drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both drivers in this process's registry, and no credentials."""
    ours = {"mirror": "tests.providers.mirror:Mirror", "tiny": "tests.providers.tiny:Tiny"}
    monkeypatch.setattr(drivers, "_DRIVERS", {**drivers._DRIVERS, **ours})
    monkeypatch.setattr(
        "pytest_cloudbench.providers.credentials.credentials_path", lambda: tmp_path / "credentials.toml"
    )
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))


@pytest.fixture
def lab(tmp_path: Path, ctrl_c: None) -> Iterator[Lab]:
    """A project that has both drivers, and a recipe for the real server."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("mirror.py", "tiny.py"):
        shutil.copy(HERE / name, folder)
    (folder / "tiny.toml").write_text(recipe(folder / "tiny.py"))
    with lab_in(folder) as new_lab:
        (folder / "conftest.py").write_text(REGISTER)
        yield new_lab


def recipe(program: Path = HERE / "tiny.py", ready: str = 'ready = "listens on port {port}"') -> str:
    """Return the recipe of the real server, as TOML."""
    return f"""
name = "tiny server"
driver = "tiny"
command = ['{sys.executable}', '{program}', '{{port}}', '{{folder}}', '{{secret}}']
{ready}
url = "http://127.0.0.1:{{port}}"

[credentials]
password = "{{secret}}"
"""
