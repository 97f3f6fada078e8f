"""``*.bench.toml`` as tests: what a file says, done with the ``experiment`` fixture.

What may live here: a file into test functions, the checks that need other files or the registries, and the steps of
one test. The keys are read by ``plugin.configs.bench``.
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
from pytest_cloudbench.plugin.collect.module import ConfigModule, text_of
from pytest_cloudbench.plugin.configs.bench import BenchCase, BenchExperiment, parse_bench
from pytest_cloudbench.plugin.configs.bench_keys import OPERATIONS
from pytest_cloudbench.workload.trace import Replay

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result
    from pytest_cloudbench.workload.payload import Payloads

_WORDS: Mapping[Verb, str] = {verb: word for word, verb in OPERATIONS.items()}
_TRACE = "trace"
"""The label of the one entry that a trace makes."""

_LONGEST_WAIT_S = 86400.0
"""A longer wait for the first operation is a mistake; a trace with calendar times says so with ``from_first``."""

_BEGIN = re.compile(r"[ \t]*\[\[[ \t]*experiment[ \t]*\]\]")


class BenchFileModule(ConfigModule):
    """One test for each experiment of a ``*.bench.toml`` file, or for each combination of its grid."""

    def tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Read the file. Raises ConfigError naming file, key and what was expected."""
        text = text_of(path)
        found = parse_bench(text, path.name, partial(read_trace, folder=path.parent))
        made = {}
        for at, bench in enumerate(found.experiments):
            place = f"experiment[{at}]"
            if not self.config.option.cloudbench_provider:  # they win
                for spec in bench.providers:
                    _check_provider(spec, found.source, f"{place}.provider")
            for number, claim in enumerate(bench.expectations):
                if claim.provider is not None:  # one that is not there would never be judged
                    _check_provider(claim.provider, found.source, f"{place}.expect[{number}].provider")
            _check_traces(bench, found.source, place)
            test = _test(bench, found.source, place)
            test.__doc__ = bench.description
            if bench.providers:
                test = pytest.mark.cloudbench_provider(*bench.providers)(test)
            made[bench.name] = test
        for test, line in zip(made.values(), _lines(text, len(made)), strict=False):
            vars(test)["line"] = line
        return made


# --- from file to test ---


def _test(bench: BenchExperiment, source: str, place: str) -> Callable[..., None]:
    def one(experiment: Experiment, payloads: Payloads, case: BenchCase) -> None:
        _check_operations(experiment, bench, source, place)
        _measure(experiment, bench, case, payloads.seed)

    def alone(experiment: Experiment, payloads: Payloads) -> None:
        one(experiment, payloads, bench.cases[0])

    if not bench.cases[0].id:  # no grid
        return alone
    cases = [pytest.param(case, id=case.id) for case in bench.cases]
    test: Callable[..., None] = pytest.mark.parametrize("case", cases)(one)
    return test


def _lines(text: str, experiments: int) -> list[int]:
    """Line numbers of the experiments, from 0; empty if uncertain (a multi-line text may contain such a line)."""
    begins = [number for number, line in enumerate(text.splitlines()) if _BEGIN.match(line)]
    return begins if len(begins) == experiments else []


def _check_provider(text: str, source: str, key: str) -> None:
    """Whether there is such a provider. Credentials are looked for when it is used: other tests may not need them."""
    from pytest_cloudbench import providers

    try:
        providers.check_name(text)
    except UsageError as error:
        raise ConfigError(source, key, str(error)) from None


def _check_traces(bench: BenchExperiment, source: str, place: str) -> None:
    """Whether all rows that will be used can be replayed, and soon."""
    from pytest_cloudbench.load.engine.operations import traced_work

    for case in bench.cases:
        load = case.load
        if not isinstance(load.arrival, Replay):
            continue
        try:
            traced_work(load.arrival, range(load.sensors), load.ops_per_sensor)
        except UsageError as error:
            raise ConfigError(source, f"{place}.arrival.file", str(error)) from None
        begin_s = load.arrival.trace.begin_s / load.arrival.scale
        if begin_s > _LONGEST_WAIT_S and not load.arrival.from_first:  # most likely seconds since 1970
            expected = f"expected true: the first operation would be due after {begin_s / 86400:.0f} days"
            raise ConfigError(source, f"{place}.arrival.from_first", expected)


def _check_operations(experiment: Experiment, bench: BenchExperiment, source: str, place: str) -> None:
    """Whether the provider offers every operation, before anything is measured."""
    offered = experiment.provider.driver.capabilities.verbs
    for verb in bench.operations:
        if verb not in offered:
            able = ", ".join(word for word, each in OPERATIONS.items() if each in offered)
            expected = f"expected what {experiment.provider.spec} offers ({able}), found {_WORDS[verb]!r}"
            raise ConfigError(source, f"{place}.operations", expected)


# --- one test ---


def _measure(experiment: Experiment, bench: BenchExperiment, case: BenchCase, seed: str) -> None:
    """Measure everything first, then judge it."""
    provider, facts = experiment.provider, experiment.facts
    names = [provider.spec, *([f"emulated:{provider.profile}"] if provider.profile else [])]
    today = datetime.datetime.strptime(facts.run_id[:8], "%Y%m%d").date()  # the run's, the same for every agent
    load = replace(
        case.load, payload=case.payload.make(seed), keep=len(bench.operations) > 1, warm_up_s=bench.warm_up_s,
        until=bench.until, may_drift=bench.may_drift,
    )  # fmt: skip
    experiment.params = dict(case.params)
    results: list[tuple[str, Result]] = []
    for number in range(1, bench.repeat + 1):
        again, files = f"-{number}" if number > 1 else "", None
        for verb in bench.operations or [None]:
            label = (_TRACE if verb is None else _WORDS[verb]) + again
            entry = EntryOptions(label, expect=bench.claims(case, verb, names, today), gate=bench.gate)
            result = experiment.run(replace(load, operation=verb or Verb.PUT, on=files), entry)
            files = files or result.files
            results.append((label, result))
        experiment.close()  # the next round begins as this one did
    _check(results)


def _check(results: Sequence[tuple[str, Result]]) -> None:
    """Report everything that is broken, otherwise everything that cannot be judged."""
    from pytest_cloudbench.load.gate.verdicts import ExpectationBroken, ExpectationUnknown

    broken: list[str] = []
    unknown: list[str] = []
    for label, result in results:
        try:
            result.check()
        except ExpectationBroken as error:
            broken += [f"{label}: {line}" for line in str(error).splitlines()]
        except ExpectationUnknown as error:
            unknown += [f"{label}: {line}" for line in str(error).splitlines()]
    if broken:
        raise ExpectationBroken("\n".join(broken))
    if unknown:
        raise ExpectationUnknown("\n".join(unknown))
