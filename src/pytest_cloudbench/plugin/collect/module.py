"""A configuration file as a module of tests, so that fixtures, providers and the fleet work as in any module.

What may live here: the collector that all kinds of configuration files share. Each file type has its own
collector; its tests call ``experiment.run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cloudbench.model import ConfigError, UsageError
from pytest_cloudbench.support import opening

_MARKS_OF_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def text_of(path: Path) -> str:
    """The text of a configuration file. Raises ConfigError when it cannot be read, or is not UTF-8."""
    try:
        data = opening.read_file(path)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = "it is UTF-16" if data.startswith(_MARKS_OF_UTF_16) else f"byte {error.start} does not belong to one"
        raise ConfigError(path.name, "", f"expected a text in UTF-8, {found}; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(path.name, "", f"cannot be read: {error.strerror}") from None


class ConfigModule(pytest.Module):
    """Collects the functions that ``tests`` gives instead of importing a file."""

    def tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Test functions by name, as the file says. Raises UsageError, which becomes a collection error of one line.

        A function may have the attribute ``line``, where it stands in the file, from 0.
        """
        raise NotImplementedError

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Every test of the file, whatever the user's own functions are to be called (``python_functions``)."""
        tests = {name: test for name, test in vars(self.obj).items() if not name.startswith("__")}
        return [item for name, test in tests.items() for item in self._genfunctions(name, test)]

    def _getobj(self) -> ModuleType:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.Module: a module that nobody imports."""
        module = ModuleType(self.path.stem.replace(".", "_"), f"Experiments of {self.path.name}")
        try:
            tests = self.tests(self.path)
            for name in tests:
                if name.startswith(("__", "pytest")):  # pytest itself looks for such names in a module
                    raise ConfigError(self.path.name, name, "expected a name that does not begin with pytest or __")
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        vars(module).update(tests)
        return module

    def _genfunctions(self, name: str, funcobj: Any) -> Any:
        """Each test reports the file as its location, not the code that made it."""
        for item in super()._genfunctions(name, funcobj):
            item.__class__ = ConfigFunction
            yield item


class ConfigFunction(pytest.Function):
    """A test located in the configuration file."""

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.Item.reportinfo."""
        return self.path, getattr(self.function, "line", 0), self.name
