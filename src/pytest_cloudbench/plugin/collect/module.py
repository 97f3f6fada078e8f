"""The base class of collectors that turn a configuration file into a module of tests.

Fixtures, providers and the fleet work in it as in any module. Each file type derives its own collector, whose tests
call ``experiment.run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cloudbench.model import ConfigError, UsageError
from pytest_cloudbench.support import opening

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_utf8(path: Path) -> str:
    """Return the text of a configuration file. Raises ConfigError if it cannot be read or is not UTF-8."""
    try:
        data = opening.read_file(path)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = "it is UTF-16" if data.startswith(_UTF_16_MARKS) else f"byte {error.start} does not belong to one"
        raise ConfigError(path.name, "", f"expected a text in UTF-8, {problem}; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(path.name, "", f"cannot be read: {error.strerror}") from None


class ConfigModule(pytest.Module):
    """A module whose test functions come from ``make_tests`` instead of from an imported file."""

    def make_tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Return the test functions by name. Raises UsageError, which becomes a collection error of one line.

        A function may have the attribute ``line``: its line number in the file, from 0.
        """
        raise NotImplementedError

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return the items of all tests, whatever names ``python_functions`` asks for in the user's own modules."""
        tests = {name: test for name, test in vars(self.obj).items() if not name.startswith("__")}
        return [item for name, test in tests.items() for item in self._genfunctions(name, test)]

    def _getobj(self) -> ModuleType:
        """Return a module without importing one.

        See https://docs.pytest.org/en/stable/reference/reference.html#pytest.Module.
        """
        module = ModuleType(self.path.stem.replace(".", "_"), f"Experiments of {self.path.name}")
        try:
            tests = self.make_tests(self.path)
            for name in tests:
                if name.startswith(("__", "pytest")):  # pytest itself looks for such names in a module
                    raise ConfigError(self.path.name, name, "expected a name that does not begin with pytest or __")
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        vars(module).update(tests)
        return module

    def _genfunctions(self, name: str, funcobj: Any) -> Any:
        """Make each item report the configuration file as its location, not the code that created it."""
        for item in super()._genfunctions(name, funcobj):
            item.__class__ = ConfigFunction
            yield item


class ConfigFunction(pytest.Function):
    """A test located in the configuration file."""

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.Item.reportinfo."""
        return self.path, getattr(self.function, "line", 0), self.name
