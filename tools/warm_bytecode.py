"""Compile the package as pytest loads it, once at set-up.

pytest rewrites the assertions of its plugins and keeps the result as bytecode of its own. Where bytecode is not
written (PYTHONDONTWRITEBYTECODE, a read-only checkout) each of fifty workers would compile every module again.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest


class _Warm:
    def pytest_configure(self, config: pytest.Config) -> None:
        import pytest_cloudbench

        for module in pkgutil.walk_packages(pytest_cloudbench.__path__, "pytest_cloudbench."):
            importlib.import_module(module.name)


if __name__ == "__main__":
    sys.exit(pytest.main(["--collect-only", "--quiet", "--no-header", "suites"], plugins=[_Warm()]))
