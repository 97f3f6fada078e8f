"""The registry of emulated APIs, which the starting process and the emulator's own process both import."""

from __future__ import annotations

from collections.abc import Mapping

SKINS: Mapping[str, str] = {
    "box": "pytest_cloudbench.emulators.box",
    "dropbox": "pytest_cloudbench.emulators.dropbox",
    "gdrive": "pytest_cloudbench.emulators.gdrive",
    "mega": "pytest_cloudbench.emulators.mega",
    "onedrive": "pytest_cloudbench.emulators.onedrive",
}
"""API name to the module that makes its skin and lists the words of its profiles (docs/extending/emulator.md)."""
