"""Which emulators there are: the registry of APIs.

What may live here: one line per API. Imported by the process that starts an emulator and by the emulator's process.
"""

from __future__ import annotations

from collections.abc import Mapping

SKINS: Mapping[str, str] = {
    "box": "pytest_cloudbench.emulators.box",
    "dropbox": "pytest_cloudbench.emulators.dropbox",
    "gdrive": "pytest_cloudbench.emulators.gdrive",
    "mega": "pytest_cloudbench.emulators.mega",
    "onedrive": "pytest_cloudbench.emulators.onedrive",
}
"""API name to the module that knows the words of its profiles and makes its skin (docs/extending/emulator.md)."""
