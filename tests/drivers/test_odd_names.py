"""Odd names on every driver: each name is kept or refused in one line, and never means another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers, providers
from tests.provider_folders import make_folders

from .conformance_table import TABLE
from .real import ODD_NAMES, assert_names_are_kept_or_refused
from .test_driver_conformance import require_installed

QUICK = frozenset({"box", "dropbox", "folder", "gcs", "gdrive", "onedrive", "s3", "sftp", "webdav"})
"""The drivers of the quick run. Services of the others take seconds to start, or are the same as these."""

NO_TEXT, LONG, CONTROL = {"\ud800"}, {"n" * 1024, "\u00f6" * 512}, {"a\nb", "a\x7f", "a\0b"}
PRINTABLE = {name for name in ODD_NAMES if name not in NO_TEXT | LONG | CONTROL}
MICROSOFT = {name for name in PRINTABLE if set(name) & set('"*:<>?/\\|') or name != name.strip()}

MAY_REFUSE: dict[str, set[str]] = {
    "azure": {"dot.", "hidden..", "...", "a\\b", "a\0b"},  # the service changes these names, or does not list them
    "box": {" before", "after ", "a\\b", *LONG, *CONTROL},
    "dropbox": {"a\\b", "e\u0301", *LONG, *CONTROL},  # composed by the service, which then does not find it
    "dropbox+fast": {"a\\b", "e\u0301", *LONG, *CONTROL},
    "folder": {*LONG, *CONTROL},
    "gcs": {"a\nb"},
    "gdrive": {"a\0b"},
    "mega": {"a\0b"},
    "onedrive": {*MICROSOFT, *LONG, *CONTROL},
    "opendal": {" before", "after ", *LONG, *CONTROL},
    "raid": {"a\0b"},
    "rclone": {*LONG, *CONTROL},
    "s3": LONG,  # a key has at most 1,024 bytes, its folder's included
    "s3+fast": {*LONG, *CONTROL},
    "sftp": {*LONG, "a\0b"},
    "swift": {"n" * 1024, "\u00f6" * 512, "a\0b"},
    "tahoe": {"e\u0301", "a\0b"},  # composed by the gateway
    "webdav": {*LONG, *CONTROL},
}
"""The names that each driver's service or library may refuse. A driver without a row refuses none of these.

Every driver may refuse a name that is not text.
"""


def scheme_params() -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in drivers.schemes()]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", scheme_params())
def test_odd_names_are_kept_or_refused(scheme: str, tmp_path: Path) -> None:
    spec = require_installed(TABLE[scheme].format(folder=tmp_path, here=Path(__file__).parent))
    make_folders(tmp_path, [spec])
    with providers.opened(spec) as driver:
        refused = assert_names_are_kept_or_refused(driver, "/odd names")
    assert refused <= MAY_REFUSE.get(scheme, set()) | NO_TEXT
