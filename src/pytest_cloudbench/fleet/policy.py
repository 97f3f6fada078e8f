"""What a run of load suites wants of pytest and its other plugins.

What may live here: defaults that a suite sets through public options, each only where the user has not
said otherwise. A user's own ``conftest.py`` may call ``adopt`` for experiments of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["adopt", "adopted", "lean_workers", "shipped_suites"]

_ADOPTED = pytest.StashKey[bool]()
_NOT_IN_WORKERS = ("hypothesispytest", "platformdirs", "xdist.looponfail")
"""Plugins a load agent never uses; fifty workers would pay for each of them."""


def adopt(config: pytest.Config, folder: Path) -> None:
    """Store results below ``--cloudbench-results``, and judge by ``folder``'s ``expectations.toml``.

    pytest-benchmark's own table is left to ``--benchmark-compare`` and ``--benchmark-verbose``.
    """
    option: Any = config.option
    config.stash[_ADOPTED] = True
    if option.cloudbench_expectations is None and (folder / "expectations.toml").is_file():
        option.cloudbench_expectations = str(folder / "expectations.toml")
    if not hasattr(option, "benchmark_storage") or option.collectonly:
        return
    given = " ".join([*config.invocation_params.args, os.environ.get("PYTEST_ADDOPTS", "")])
    if "--benchmark-storage" not in given and "PYTEST_BENCHMARK_STORAGE" not in os.environ:
        option.benchmark_storage = "file://" + str(config.invocation_params.dir / option.cloudbench_results)
    if not (option.benchmark_compare or option.benchmark_verbose):
        option.benchmark_quiet = True


def adopted(config: pytest.Config) -> bool:
    """Whether this run is one of load suites."""
    return config.stash.get(_ADOPTED, False)


def shipped_suites(config: pytest.Config) -> Path | None:
    """The folder of the suites in the installed package, when the command line names them (``--pyargs``)."""
    if config.option.pyargs and any(str(arg).startswith("pytest_cloudbench.suites") for arg in config.args):
        return Path(__file__).parent.parent / "suites"
    return None


def lean_workers(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Start the workers of a load suite without plugins that it never uses."""
    if not adopted(config):
        return
    args = " ".join(str(arg) for arg in config.invocation_params.args)
    blocked = [name for name in _NOT_IN_WORKERS if f"--{name.removesuffix('pytest')}" not in args]
    options = " ".join([os.environ.get("PYTEST_ADDOPTS", ""), *(f"-p no:{name}" for name in blocked)])
    for spec in specs:
        spec.env.setdefault("PYTEST_ADDOPTS", options.strip())
