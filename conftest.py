"""Policy of this checkout, and nothing else: what a site wants of every run belongs here.

For example a budget for all runs against real accounts::

    def pytest_configure(config):
        if any(not spec.startswith("emulated:") for spec in config.option.cloudbench_provider):
            config.option.cloudbench_max_ops = config.option.cloudbench_max_ops or 10_000

The suites' own policy is in suites/conftest.py, the project's tests have theirs in tests/.
"""

from __future__ import annotations

import pytest

# Under `python -O`, only what pytest rewrites still asserts: by itself these are test modules, and not their helpers.
pytest.register_assert_rewrite("tests", "suites")
