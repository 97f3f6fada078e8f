"""The estimate of tests' work at a provider, without a connection, a service or a file.

What may live here: an experiment that only counts the operations of its test, and the texts about it. A test goes on
with results as if every operation had succeeded. Where it needs more, the estimate is a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Unpack

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.records import RECORD_BYTES
from pytest_cloudbench.load.conductor.costs import Work, describe_cost
from pytest_cloudbench.load.engine.operations import Deal
from pytest_cloudbench.load.experiment import Experiment, Result
from pytest_cloudbench.load.request import EntryOptions, Files, Load, RunKeywords, parse_request
from pytest_cloudbench.model import CloudbenchError, Verb
from pytest_cloudbench.providers.leaves import Leaf
from pytest_cloudbench.report.quantities import format_bytes, format_seconds
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.support import redact
from pytest_cloudbench.workload.arrival import Closed, plan
from pytest_cloudbench.workload.payload import Generator

_IDEAL_VALUES = {"fraction": (0.0, 1.0), "s": (0.1, 0.1)}
"""The values of metrics with this unit if all goes well: one that should be low, and one that should be high."""

_MAX_OPS_SHOWN = 10_000
"""The most operations whose times a test gets."""

_MAX_RUNS = 1000
"""The most runs of a test. A test that goes on until a result changes would never end."""

INDENT = 14
"""The column at which the texts of an estimate begin."""

_NO_ACCOUNT = "none: no account is used"


class NotForeseen(CloudbenchError):
    """A test needs a value that only a run can give."""


class AgentWithoutFleet(Agent):
    """The only agent of an estimate, without a controller."""

    def __init__(self) -> None:
        # With ``same_clock``, logs and captures would be written into the results folder.
        super().__init__("main", lambda message: None, same_clock=False)

    def ask(self, name: str, payload: Any = None) -> Any:
        """Raise NotForeseen."""
        raise NotForeseen(f"it asks for {name}")

    def gather(self, name: str, payload: Any = None) -> Any:
        """Raise NotForeseen."""
        raise NotForeseen(f"its agents meet for {name.partition(':')[0]}")

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work, and return its result."""
        return work()


class UnconnectedDriver:
    """A driver that knows only its declared capabilities."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves

    def __getattr__(self, name: str) -> Any:
        if name == "capabilities" and len(self._leaves) == 1 and self._leaves[0].capabilities is not None:
            return self._leaves[0].capabilities
        raise NotForeseen(f"it asks the provider ({name})")

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Estimate:
    """The estimated work of one test.

    Attributes:
        nodeid, provider: of the test.
        work: operations and bytes of all its runs.
        space_bytes: the most that its files take at one time.
        least_s: the shortest time that it takes, by its own schedule.
        runs: the number of counted runs.
        is_paced: whether the times of all operations are fixed. Otherwise some begin when others end.
        reason: the reason why the test did not come to its end, so that there may be more work. Otherwise empty.
    """

    nodeid: str
    provider: str
    work: Work = field(default_factory=lambda: Work({}))
    space_bytes: int = 0
    least_s: float = 0.0
    runs: int = 0
    is_paced: bool = True
    reason: str = ""

    def add(self, work: Work, kept_bytes: int, least_s: float, *, is_paced: bool) -> None:
        """Add a run, while earlier runs keep ``kept_bytes`` at the provider."""
        self.runs += 1
        self.work += work
        self.space_bytes = max(self.space_bytes, kept_bytes + work.up_bytes)
        self.least_s += least_s
        self.is_paced = self.is_paced and is_paced


@dataclass(slots=True)
class CountingExperiment(Experiment):
    """An experiment whose runs are only counted."""

    estimate: Estimate = field(default_factory=lambda: Estimate("", ""))
    _kept_bytes: dict[str, int] = field(default_factory=dict)

    def run(
        self, load: Load | Generator | None = None, entry: EntryOptions | None = None, **keywords: Unpack[RunKeywords]
    ) -> Result:
        """Count the work of a run. Return its result as if every operation had succeeded."""
        load, entry = parse_request(load, entry, keywords)
        self._runs += 1
        if self._runs > _MAX_RUNS:
            raise NotForeseen(f"it makes more than {_MAX_RUNS:,} runs")
        files, deal = self._plan(load, self._run_name())
        work = count_work(load, deal, files)
        least_s = self._least_s(deal)
        is_paced = not isinstance(load.arrival, Closed) or bool(load.for_s)
        self.estimate.add(work, sum(self._kept_bytes.values()), least_s, is_paced=is_paced)
        ops = deal.ops if deal.traced_work(0, 1) is None else sum(work.ops.values())
        kept_files = None
        if load.keep:
            kept_files = files
            if load.on is None:
                self._kept_bytes[files.folder] = work.up_bytes
                members = deal.agent_files(0, 1) if deal.traced_work(0, 1) is None else ()
                kept_files = Files(files.folder, files.payload, members, files.named, deal.limits)
        result = _ideal_result(ops, least_s, files.payload.size_bytes, detail=load.detail, files=kept_files)
        return replace(result, info={**result.info, "operation": load.operation.value})

    def _least_s(self, deal: Deal) -> float:
        if isinstance(deal.arrival, Closed):
            return deal.shortest_s() / self.facts.time_scale
        scale = self.facts.time_scale
        schedule = plan(deal.arrival, range(deal.sensors), deal.ops_per_sensor, self.facts.seed, scale)
        return (schedule if deal.limits is None else schedule.limit_operations(deal.ops_of_sensor)).horizon_s

    def conclude(self, metrics: Mapping[str, Any], *args: Any, **keywords: Any) -> Result:
        """Return the metrics as they are."""
        return Result({**_ideal_result(0, 0.0, 0).info, **metrics, **(keywords.get("extra") or {})})

    def scratch(self, payload: Generator) -> NoReturn:
        """Raise NotForeseen, because the operations that follow are the test's own."""
        raise NotForeseen("its operations follow from one another")

    def elsewhere(self, provider: Any) -> NoReturn:
        """Raise NotForeseen."""
        raise NotForeseen("it goes on at another provider")

    def remove(self, files: Files) -> bool:
        """Stop counting the space of these files. Return whether they were counted."""
        return self._kept_bytes.pop(files.folder, None) is not None

    def report(self, text: str, file: str = "", content: str = "") -> None:
        """Do nothing."""

    def close(self) -> None:
        """Stop counting the space of all files."""
        self._kept_bytes.clear()


def count_work(load: Load, deal: Deal, files: Files) -> Work:
    """Return the work of a run: unmeasured uploads, its operations, and the listing after them."""
    size_bytes = files.payload.size_bytes
    traced = deal.traced_work(0, 1)
    if traced is None:
        ops, moved = deal.ops, deal.ops * size_bytes
        prepares = load.on is None and load.operation is not Verb.PUT
        up_bytes = moved if prepares or load.operation is Verb.PUT else 0
        work = Work({load.operation: ops}, up_bytes, moved if load.operation is Verb.GET else 0)
        work += Work({Verb.PUT: ops} if prepares else {})
    else:
        work = Work(traced.counts, traced.up_bytes, traced.down_bytes)
    lists = load.verify and load.operation in (Verb.PUT, Verb.DELETE)
    return work + Work({Verb.LIST: 1} if lists else {})


def _ideal_result(
    ops: int, least_s: float, size_bytes: int, *, detail: bool = False, files: Files | None = None
) -> Result:
    """Return the result of a run in which every operation succeeds at once."""
    info: dict[str, Any] = {
        name: _IDEAL_VALUES.get(metric.unit, (1.0, 1.0))[metric.better == "higher"] for name, metric in METRICS.items()
    }
    elapsed_s = least_s or 0.1
    info |= {
        "ops": ops, "ok": ops, "elapsed": elapsed_s, "ops_per_s": ops / elapsed_s,
        "throughput": ops * size_bytes / elapsed_s, "size_bytes": size_bytes, "ops_file": "",
        **dict.fromkeys(("cpu_share", "client_cpu_s", "wire_by")),
        **dict.fromkeys(("failed", "throttled", "corrupt", "lost", "silent_loss"), 0),
    }  # fmt: skip
    shown = min(ops, _MAX_OPS_SHOWN) if detail else 0
    columns: dict[str, list[Any]] = {
        "sensor": [0] * shown, "seq": list(range(shown)), "outcome": ["ok"] * shown, "kind": [""] * shown,
        "start_s": [0.1 * number for number in range(shown)],
        **{name: [0.1] * shown for name in ("service_s", "response_s", "first_byte_s")},
    }  # fmt: skip
    return Result(info, ops=columns if detail else {}, files=files)


# --- texts ---


def describe(estimate: Estimate, leaves: Sequence[Leaf], results: str) -> list[str]:
    """Return lines about one test, with continuations indented by ``INDENT``.

    ``results`` is the folder of the records.
    """
    provider = redact.mask_named(estimate.provider)
    is_in_name = f"[{provider}" in estimate.nodeid or not provider
    lines = [f"{estimate.nodeid}:" if is_in_name else f"{estimate.nodeid}, {provider}:"]
    if not estimate.runs:
        return [*lines, f"  not estimated: {estimate.reason or 'it runs no operation'}"]
    rows = _estimate_rows(estimate, leaves, results)
    if estimate.reason:
        rows.append(("more", f"at least this: {estimate.reason}"))
    return [*lines, *(f"  {name:<12}{text}" for name, text in rows)]


def describe_all(estimates: Sequence[Estimate], leaves: Mapping[str, Sequence[Leaf]], results: str) -> list[str]:
    """Return lines about each test, and about all tests of a provider if there are several."""
    lines = [line for estimate in estimates for line in [*describe(estimate, leaves[estimate.provider], results), ""]]
    for provider in dict.fromkeys(estimate.provider for estimate in estimates):
        own = [estimate for estimate in estimates if estimate.provider == provider]
        counted = [estimate for estimate in own if estimate.runs]
        if len(counted) > 1:
            total = Estimate(f"all {len(counted)} tests", provider, reason=next(iter(_reasons(own)), ""))
            for estimate in counted:
                total.add(estimate.work, 0, estimate.least_s, is_paced=estimate.is_paced)
            total.space_bytes = max(estimate.space_bytes for estimate in counted)  # each removes its files at its end
            lines += [*describe(total, leaves[provider], results), ""]
    return lines


def _reasons(estimates: Sequence[Estimate]) -> list[str]:
    return [f"{split_name(estimate.nodeid).title}: {estimate.reason}" for estimate in estimates if estimate.reason]


def _estimate_rows(estimate: Estimate, leaves: Sequence[Leaf], results: str) -> list[tuple[str, str]]:
    """Return the rows of an estimate: what is estimated, and the estimate in words."""
    work = estimate.work
    counts = ", ".join(f"{count:,} {verb.value}" for verb, count in work.ops.items() if count)
    duration = f"about {format_seconds(estimate.least_s)}" if estimate.least_s else "at once"
    if not estimate.is_paced:
        minimum = f", at least {format_seconds(estimate.least_s)}" if estimate.least_s else ""
        duration = f"as long as the provider takes{minimum}"
    counted = [leaf for leaf in leaves if leaf.requests]
    count = sum(work.requests(leaf.requests) for leaf in counted)
    requests = "not known" if not counted else f"at least {count:,}" if count else "none"
    accounts = [(leaf.spec, leaf.requests) for leaf in leaves if leaf.is_account]
    locations = {leaf.where for leaf in leaves}
    location = {"memory": "in this machine's memory", "machine": "on this machine"}.get(
        locations.pop() if len(locations) == 1 else "", "at the provider"
    )
    records = format_bytes(sum(work.ops.values()) * RECORD_BYTES)
    return [
        ("operations", f"{sum(work.ops.values()):,} ({counts})"),
        ("bytes", f"{work.up_bytes:,} up, {work.down_bytes:,} down"),
        ("requests", requests),
        ("duration", duration),
        ("cost", describe_cost(accounts, work) if accounts else _NO_ACCOUNT),
        ("space", f"at most {format_bytes(estimate.space_bytes)} {location}, {records} of records in {results}"),
    ]  # fmt: skip
