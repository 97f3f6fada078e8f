"""Collect ``*.bench.toml`` files as tests that run the ``experiment`` fixture.

This module turns a file into test functions, makes the checks that need other files or the registries, and has the
steps of one test. ``plugin.configs.bench`` reads the keys.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.data import read_trace
from pytest_cloudbench.load.request import EntryOptions
from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.plugin.collect.module import ConfigModule, read_utf8
from pytest_cloudbench.plugin.configs.bench import BenchCase, BenchExperiment, parse_bench
from pytest_cloudbench.plugin.configs.bench_keys import OPERATIONS
from pytest_cloudbench.workload.trace import MAX_WAIT_S, Replay

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result
    from pytest_cloudbench.workload.payload import Payloads

_OPERATION_NAMES: Mapping[Verb, str] = {verb: word for word, verb in OPERATIONS.items()}
_TRACE_LABEL = "trace"
"""The label of the single entry of a replayed trace."""

_EXPERIMENT_HEADER = re.compile(r"[ \t]*\[\[[ \t]*experiment[ \t]*\]\]")


class BenchFileModule(ConfigModule):
    """One test for each experiment of a ``*.bench.toml`` file, or for each combination of its grid."""

    def make_tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Read the file and return its tests. Raises ConfigError naming file, key and what was expected."""
        text = read_utf8(path)
        bench_file = parse_bench(text, path.name, partial(read_trace, folder=path.parent))
        tests = {}
        for index, bench in enumerate(bench_file.experiments):
            key = f"experiment[{index}]"
            if not self.config.option.cloudbench_provider:  # which overrides the file's
                for spec in bench.providers:
                    _check_provider(spec, bench_file.source, f"{key}.provider")
            for number, claim in enumerate(bench.expectations):
                if claim.provider is not None:  # a claim about an unknown provider would silently never be judged
                    _check_provider(claim.provider, bench_file.source, f"{key}.expect[{number}].provider")
            _check_traces(bench, bench_file.source, key)
            test = _make_test(bench, bench_file.source, key)
            test.__doc__ = bench.description
            if bench.providers:
                test = pytest.mark.cloudbench_provider(*bench.providers)(test)
            tests[bench.name] = test
        for test, line in zip(tests.values(), _experiment_lines(text, len(tests)), strict=False):
            vars(test)["line"] = line
        return tests


# --- from file to test ---


def _make_test(bench: BenchExperiment, source: str, key: str) -> Callable[..., None]:
    def run_case(experiment: Experiment, payloads: Payloads, case: BenchCase) -> None:
        _check_operations(experiment, bench, source, key)
        _measure(experiment, bench, case, payloads.seed)

    def run_single_case(experiment: Experiment, payloads: Payloads) -> None:
        run_case(experiment, payloads, bench.cases[0])

    if not bench.cases[0].id:  # no grid
        return run_single_case
    cases = [pytest.param(case, id=case.id) for case in bench.cases]
    test: Callable[..., None] = pytest.mark.parametrize("case", cases)(run_case)
    return test


def _experiment_lines(text: str, experiment_count: int) -> list[int]:
    """Return the line numbers of the experiments, from 0, or no number if other text may look like such a line."""
    line_numbers = [number for number, line in enumerate(text.splitlines()) if _EXPERIMENT_HEADER.match(line)]
    return line_numbers if len(line_numbers) == experiment_count else []


def _check_provider(text: str, source: str, key: str) -> None:
    """Raise ConfigError unless the provider exists. Credentials are checked later, by the tests that need them."""
    from pytest_cloudbench import providers

    try:
        providers.resolve(text)
    except UsageError as error:
        raise ConfigError(source, key, str(error)) from None


def _check_traces(bench: BenchExperiment, source: str, key: str) -> None:
    """Raise ConfigError unless all rows of traces that will be used can be replayed, and start soon."""
    from pytest_cloudbench.load.engine.operations import find_traced_work

    for case in bench.cases:
        load = case.load
        if not isinstance(load.arrival, Replay):
            continue
        try:
            find_traced_work(load.arrival, range(load.sensors), load.ops_per_sensor)
        except UsageError as error:
            name = "from_first" if load.arrival.begin_s > MAX_WAIT_S else "file"
            raise ConfigError(source, f"{key}.arrival.{name}", str(error)) from None


def _check_operations(experiment: Experiment, bench: BenchExperiment, source: str, key: str) -> None:
    """Raise ConfigError before anything is measured if the provider does not offer an operation."""
    offered = experiment.provider.driver.capabilities.verbs
    for operation in bench.operations:
        if operation not in offered:
            names = ", ".join(name for name, verb in OPERATIONS.items() if verb in offered)
            expected = (
                f"expected what {experiment.provider.spec} offers ({names}), found {_OPERATION_NAMES[operation]!r}"
            )
            raise ConfigError(source, f"{key}.operations", expected)


# --- one test ---


def _measure(experiment: Experiment, bench: BenchExperiment, case: BenchCase, seed: str) -> None:
    """Measure all operations in all rounds, then judge the results."""
    provider, facts = experiment.provider, experiment.facts
    provider_names = [provider.spec, *([f"emulated:{provider.profile}"] if provider.profile else [])]
    # From the run id, so that all agents agree.
    run_date = datetime.datetime.strptime(facts.run_id[:8], "%Y%m%d").date()
    load = replace(
        case.load, payload=case.payload.make(seed), keep=len(bench.operations) > 1, warm_up_s=bench.warm_up_s,
        until=bench.until, may_drift=bench.may_drift,
    )  # fmt: skip
    experiment.params = dict(case.params)
    results: list[tuple[str, Result]] = []
    for number in range(1, bench.repeat + 1):
        suffix, files = f"-{number}" if number > 1 else "", None
        for verb in bench.operations or [None]:
            label = (_TRACE_LABEL if verb is None else _OPERATION_NAMES[verb]) + suffix
            entry = EntryOptions(
                label, expect=bench.expectations_for(case, verb, provider_names, run_date), gate=bench.gate
            )
            result = experiment.run(replace(load, operation=verb or Verb.PUT, on=files), entry)
            files = files or result.files
            results.append((label, result))
        experiment.close()  # removes the files, so that the next round starts empty
    _check_results(results)


def _check_results(results: Sequence[tuple[str, Result]]) -> None:
    """Raise one error for all broken expectations, or else one for all that cannot be judged.

    An operation that never succeeded is as bad as a broken expectation.
    """
    from pytest_cloudbench.load.experiment import require_success
    from pytest_cloudbench.load.gate.verdicts import ExpectationBroken, ExpectationUnknown

    broken: list[str] = []
    unknown: list[str] = []
    for label, result in results:
        try:
            require_success(result)
            result.check()
        except ExpectationBroken as error:
            broken += [f"{label}: {line}" for line in str(error).splitlines()]
        except ExpectationUnknown as error:
            unknown += [f"{label}: {line}" for line in str(error).splitlines()]
    if broken:
        raise ExpectationBroken("\n".join(broken))
    if unknown:
        raise ExpectationUnknown("\n".join(unknown))
