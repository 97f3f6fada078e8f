"""Commands that install an extra, which depend on the origin of the package."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest

from pytest_cloudbench.support import extras


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'pytest-cloudbench[s3]'"),
        ({"url": "file:///home/me/my%20clone", "dir_info": {}}, "pip install '/home/me/my clone[s3]'"),
        (
            {"url": "file:///home/me/clone", "dir_info": {"editable": True}},
            "pip install -e '/home/me/clone[s3]'",
        ),
        (
            {"url": "file:///tmp/it-1.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/tmp/it-1.0-py3-none-any.whl[s3]'",
        ),
        (
            {"url": "https://example.org/it.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'pytest-cloudbench[s3] @ git+https://example.org/it.git'",
        ),
        (
            {"url": "https://example.org/it.whl", "archive_info": {}},
            "pip install 'pytest-cloudbench[s3] @ https://example.org/it.whl'",
        ),
    ],
    ids=["index", "folder", "editable", "wheel", "repository", "download"],
)
def test_install_command_of_an_extra_repeats_origin_of_the_package(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert extras.install_command("s3") == command


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_found(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", raise_not_found)
    assert extras.install_command("s3") == "pip install 'pytest-cloudbench[s3]'"
