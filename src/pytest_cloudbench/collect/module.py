"""A configuration file as a module of tests, so that fixtures, providers and the fleet work as everywhere.

What may live here: the collector that all kinds of configuration files share. What a file says is read by its own
collector; what its tests do is ``experiment.run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cloudbench.model import UsageError

__all__ = ["ConfigModule"]


class ConfigModule(pytest.Module):
    """Collects the functions that ``tests`` gives instead of importing a file."""

    def tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Test functions by name, as the file says. Raises UsageError, which becomes a collection error of one line."""
        raise NotImplementedError

    def _getobj(self) -> ModuleType:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.Module: a module that nobody imports."""
        module = ModuleType(self.path.stem.replace(".", "_"), f"Experiments of {self.path.name}")
        try:
            vars(module).update(self.tests(self.path))
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        return module

    def _genfunctions(self, name: str, funcobj: Any) -> Any:
        """Each test says that it stands in the file, not in the code that made it."""
        for item in super()._genfunctions(name, funcobj):
            item.__class__ = _ConfigFunction
            yield item


class _ConfigFunction(pytest.Function):
    """A test whose place is the configuration file."""

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
