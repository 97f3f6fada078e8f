"""One load, as the command line states it: uploads, downloads, or both and more in one."""

from __future__ import annotations

from pytest_cloudbench import Suite

CLOUDBENCH_SUITE = Suite("load")
