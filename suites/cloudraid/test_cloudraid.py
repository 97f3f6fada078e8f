"""What does an array of providers gain over each of them, what does it cost, and what does it survive?

The subject is any array, ``--provider raid:FILE.toml``; without one, it is six emulated clouds of which
any four are enough. Losses and trouble are injected in this process, in front of the children, so they are the same for
real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import (
    KIB,
    MIB,
    CloudError,
    Expectation,
    RandomContent,
    Threads,
    Verb,
    chance_of_at_least,
    judge_availability,
    now_ns,
)

from .measures import (
    PHASES,
    compare_losses,
    compare_with_children,
    doubt_missing_objects,
    judge_excess,
    judge_slowdown,
    list_durations,
    measure_placement,
    measure_stored_bytes,
    median_time_s,
    note_failures,
    note_stored_bytes,
    open_child,
    phases_per_operation,
    subtract_costs,
)
from .rivals import RIVALS, measure_rival
from .trouble import SLOW_S, TROUBLES, RandomFailures, cause_trouble, first_asked_children, wrap_children

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Files, Payloads, RaidDriver, Result

OBJECTS = {"quick": 8, "paper": 100}
SIZE_BYTES = {"quick": MIB, "paper": 16 * MIB}
READS = {"quick": 300, "paper": 20_000}
SIX = pytest.mark.cloudbench_provider("raid:six")
TURNS = {"quick": 12, "paper": 20}
"""The turns of each number of lost children. An interval of 95 % leaves out two of 12 at each end."""

GOALS_SINCE = date(2026, 11, 25)


@pytest.fixture
def objects(pytestconfig: pytest.Config, grid: str) -> int:
    """The number of objects that each measurement uses."""
    option: int | None = pytestconfig.option.cloudbench_cloudraid_objects
    return OBJECTS[grid] if option is None else option


@pytest.fixture
def size_bytes(pytestconfig: pytest.Config, grid: str) -> int:
    """The size of each object."""
    option: int | None = pytestconfig.option.cloudbench_cloudraid_bytes
    return SIZE_BYTES[grid] if option is None else option


@pytest.fixture
def array(experiment: Experiment) -> RaidDriver:
    """The array under test."""
    from pytest_cloudbench import RaidDriver

    driver = experiment.provider.driver
    if not isinstance(driver, RaidDriver):
        pytest.skip(f"{experiment.provider.spec}: not an array of providers. Name one: --provider raid:FILE.toml")
    return driver


# --- together and alone -------------------------------------------------------------------------------


@SIX
def test_together_and_alone(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, objects: int, size_bytes: int
) -> None:
    """Uploads and downloads, one after another, with the array and with each of its children alone."""
    payload = payloads.random(size_bytes)

    def run_both() -> tuple[Result, Result]:
        up = experiment.run(payload, arrival=Threads(1), files=objects, keep=True, store=False, detail=True)
        down = experiment.run(
            arrival=Threads(1), on=up.files, operation=Verb.GET, store=False, detail=True
        )  # fmt: skip
        return up, down

    before = array.ledger.totals()
    together = run_both()
    spent = subtract_costs(before, array.ledger.totals())
    array_costs = experiment.agent.once(
        f"apart:{experiment.nodeid}", lambda: phases_per_operation(spent) | measure_stored_bytes(array)
    )
    alone: dict[str, tuple[Result, Result]] = {}
    for number, member in enumerate(array.array.file.children):
        with experiment.elsewhere(open_child(experiment.provider, array, number)):
            alone[member.name] = run_both()
    for index, verb in enumerate(("put", "get")):
        _conclude_direction(
            experiment, verb, together[index], {name: runs[index] for name, runs in alone.items()}, array_costs
        )


def _conclude_direction(
    experiment: Experiment, verb: str, together: Result, alone: Mapping[str, Result], array_costs: Mapping[str, Any]
) -> None:
    """Store one entry: the time of the array and its phases, compared with the times of its children."""
    phases_s = {name: array_costs[f"{verb}_phases_s"][name] for name in PHASES if f"{verb}_phases_s" in array_costs}
    compared = compare_with_children(together, alone)
    durations_s, stats_of = list_durations(together, f"a {verb} of the array")
    experiment.conclude(
        {"p50": compared["array_s"]}, durations_s, of=[together, *alone.values()], label=verb, stats_of=stats_of,
        columns=(
            "direction", "array_s", "best_s", "best_child", "times_the_best", "mb_per_s",
            *(f"{name}_s" for name in phases_s), "stored_per_byte",
        ),
        extra={
            "direction": verb, **compared, "loop": "closed", "object_bytes": together.info["size_bytes"],
            **{f"{name}_s": value for name, value in phases_s.items()},
            **{name: array_costs[name] for name in ("stored_per_byte", "stored_bytes", "content_bytes")},
        },
        notes=[*note_failures({"the array": together, **alone}), *note_stored_bytes(array_costs)],
    ).check()  # fmt: skip


# --- losses -------------------------------------------------------------------------------------------


@SIX
def test_losses(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, pytestconfig: pytest.Config, objects: int,
    size_bytes: int, grid: str,
) -> None:  # fmt: skip
    """Reads with 0 to m children lost, in turns, starting with those asked first, and finally with one more.

    With one more lost, reads fail and a write must leave nothing half done.
    """
    max_losses, at_most = array.array.file.m, pytestconfig.option.cloudbench_cloudraid_slower
    payload = payloads.random(size_bytes)
    with wrap_children(array) as children:
        up = experiment.run(payload, arrival=Threads(1), files=objects, keep=True, store=False, verify=False)
        turns: list[list[Result]] = []
        for _ in range(TURNS[grid]):
            turns.append([])
            for lost in range(max_losses + 1):
                with cause_trouble(first_asked_children(array, children, size_bytes, lost), "lost"):
                    turns[-1].append(_read_objects(experiment, up.files))
        with cause_trouble(first_asked_children(array, children, size_bytes, max_losses + 1), "lost"):
            beyond = _read_objects(experiment, up.files)
            refusal = experiment.agent.once(f"refused:{experiment.nodeid}", lambda: _try_refused_write(array, up.files))
        after = _read_objects(experiment, up.files)
    by_lost = list(zip(*turns, strict=True))
    times_s = [[taken_s for result in runs for taken_s in result.ok_s] for runs in by_lost]
    slowdowns = compare_losses([[result.ok_s for result in turn] for turn in turns])
    ratio, note = judge_slowdown(slowdowns, at_most)
    failures = [sum(result["ops"] - result["ok"] for result in runs) for runs in by_lost]
    harmed = after["ops"] - after["ok"]
    experiment.conclude(
        {"slower_with_losses": ratio, "reads_failed": sum(failures),
         "objects_harmed": harmed + (refusal["answer"] != "refused")},
        times_s[0] or [0.0], of=[*(result for turn in turns for result in turn), beyond, after],
        stats_of="time of a read with nothing lost" if times_s[0] else "nothing: no read succeeded",
        columns=("lost_at_most", "reads_failed", "slower_at_most", "with_one_more", "whole_afterwards"),
        extra={
            "lost_at_most": max_losses, "median_s": [median(read_s) if read_s else None for read_s in times_s],
            "slower": [asdict(slowdown) for slowdown in slowdowns], "p50": median(times_s[0]) if times_s[0] else None,
            "slower_at_most": max((slowdown.ratio for slowdown in slowdowns), default=None),
            "wanted": f"at most {at_most:g} x",
            "failed": [*failures, beyond["ops"] - beyond["ok"]], "with_one_more": refusal["answer"], **refusal,
            "whole_afterwards": not harmed, "turns": len(turns), "loop": "closed",
        },
        doubts=doubt_missing_objects(up),
        notes=[f"with {max_losses + 1} lost: {refusal['error']}", *note],
        expect=[
            Expectation(str(experiment.provider.spec), name, None, bound, source, GOALS_SINCE)
            for name, bound, source in (
                ("slower_with_losses", at_most, "the goal of this suite: --cloudraid-slower"),
                ("reads_failed", 0, "an array can be read without any m of its children"),
                ("objects_harmed", 0, "a write without enough children is refused and changes nothing"),
            ) if max_losses or name != "slower_with_losses"
        ],
    ).check()  # fmt: skip


def _read_objects(experiment: Experiment, files: Files | None) -> Result:
    return experiment.run(arrival=Threads(1), on=files, operation=Verb.GET, store=False, detail=True)


def _try_refused_write(array: RaidDriver, files: Files | None) -> dict[str, Any]:
    """Try a write with too few children left. Return how it ended, and whether it left everything unchanged."""
    assert files is not None
    path, _ = files.file(*files.members[0])
    row = array.array.metadata.find(path)
    try:
        array.put(path, RandomContent("never written", 64 * KIB))
    except CloudError as error:
        is_same = array.array.metadata.find(path) == row
        return {"answer": "refused" if is_same else "half done", "kind": error.kind.value, "error": str(error)[:300]}
    return {"answer": "accepted", "kind": "", "error": "a write was accepted although too few children have it"}


# --- trouble ------------------------------------------------------------------------------------------


@SIX
@pytest.mark.parametrize("kind", TROUBLES)
def test_trouble(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, kind: str, objects: int, size_bytes: int
) -> None:
    """Reads while m children are slow, hang, return changed bytes, or answer with errors."""
    payload = payloads.random(size_bytes)
    with wrap_children(array) as children:
        up = experiment.run(payload, arrival=Threads(1), files=objects, keep=True, store=False, verify=False)
        # After these reads the array knows the usual times.
        usual_runs = [_read_objects(experiment, up.files) for _ in range(2)]
        before = array.ledger.totals()
        with cause_trouble(first_asked_children(array, children, size_bytes, array.array.file.m), kind):
            troubled_runs = [_read_objects(experiment, up.files) for _ in range(2)]
        spent = subtract_costs(before, array.ledger.totals()).get("get")
    ledger_counts = experiment.agent.once(f"met:{experiment.nodeid}", lambda: {
        name: getattr(spent, name) if spent else 0 for name in ("hedged", "failed", "damaged", "missing")
    })  # fmt: skip
    usual_s, troubled_s = (
        sorted(taken_s for result in runs for taken_s in result.ok_s) for runs in (usual_runs, troubled_runs)
    )
    failed = sum(result["ops"] - result["ok"] for result in troubled_runs)
    experiment.conclude(
        {"p50": median(troubled_s) if troubled_s else None}, troubled_s or [0.0], of=[*usual_runs, *troubled_runs],
        stats_of="time of a read with trouble" if troubled_s else "nothing: no read succeeded",
        columns=("usual_s", "troubled_s", "slower", "worst_s", "reads_failed", "hedged", "failed", "damaged"),
        extra={
            "usual_s": median(usual_s) if usual_s else None, "troubled_s": median(troubled_s) if troubled_s else None,
            "slower": median(troubled_s) / median(usual_s) if troubled_s and usual_s else None,
            "worst_s": max(troubled_s, default=None),
            "reads_failed": failed, "slow_s": SLOW_S if kind == "slow" else None, "loop": "closed", **ledger_counts,
        },
        doubts=doubt_missing_objects(up) or (
            [f"{failed} reads failed, though only {array.array.file.m} children had trouble"] if failed else []
        ),
    ).check()  # fmt: skip


# --- availability -------------------------------------------------------------------------------------


UNPREDICTED = "children do not fail independently, or not as often as assumed; or this is the 1 run in 20 by chance"
"""The reasons why the prediction is outside of the interval of 95 %."""


@SIX
def test_availability(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, pytestconfig: pytest.Config, grid: str
) -> None:
    """Reads of an array whose children fail at random, against the Poisson-binomial prediction."""
    option = pytestconfig.option
    file = array.array.file
    failures = [option.cloudbench_cloudraid_failure] * len(file.children)
    predicted = chance_of_at_least(file.k, failures)
    payload = payloads.random(KIB)
    with wrap_children(array) as children:
        up = experiment.run(payload, arrival=Threads(1), files=4, keep=True, store=False, verify=False)
        chance = RandomFailures(f"{experiment.facts.seed}/availability", failures, option.cloudbench_cloudraid_shared)
        chance.install_on(children)
        reads = experiment.agent.once(
            f"reads:{experiment.nodeid}", lambda: _read_with_failures(array, up.files, chance, READS[grid])
        )
    share = judge_availability(reads["ok"], READS[grid])
    is_as_predicted = share.low <= predicted <= share.high
    experiment.conclude(
        {"availability": share.share}, reads["times_s"] or [0.0], of=[up],
        stats_of="time of a read" if reads["times_s"] else "nothing: no read succeeded",
        columns=("reads", "child_failure", "measured", "interval", "predicted", "as_predicted"),
        extra={
            "reads": READS[grid], "child_failure": failures[0], "measured": f"{share.share:.2%}",
            "shared_failure": option.cloudbench_cloudraid_shared, "interval": f"{share.low:.2%} to {share.high:.2%}",
            "predicted": f"{predicted:.2%}", "predicted_share": predicted,
            "as_predicted": "yes" if is_as_predicted else "no", "loop": "closed",
        },
        doubts=doubt_missing_objects(up),
        notes=[] if is_as_predicted else [UNPREDICTED],
    ).check()  # fmt: skip


def _read_with_failures(array: RaidDriver, files: Files | None, chance: RandomFailures, count: int) -> dict[str, Any]:
    assert files is not None
    paths = [files.file(*member)[0] for member in files.members]
    times_s: list[float] = []
    for number in range(count):
        chance.begin_operation()
        began_ns = now_ns()
        try:
            for _ in array.get(paths[number % len(paths)]):
                pass
        except CloudError:
            continue
        times_s.append((now_ns() - began_ns) / 1e9)
    return {"ok": len(times_s), "times_s": times_s[:1000]}


# --- placement ----------------------------------------------------------------------------------------

TABLE_2 = pytest.mark.cloudbench_provider("raid:cloud-raid-2012")
PUBLISHED_S = {"equal": 46.2, "throughput": 7.35, "in proportion": 2.51, "best single": 3.81}
"""Computed from the times of 10 MB in Table II, since the paper prints none of them."""


@TABLE_2
def test_placement(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, pytestconfig: pytest.Config, grid: str
) -> None:
    """Shares by observed throughput, against the least time in which any m children may still fail."""
    _require_one_agent(experiment, "each agent observes its own rates")
    at_most, is_known = pytestconfig.option.cloudbench_cloudraid_over, experiment.provider.emulated == "all"
    placement = measure_placement(experiment, payloads, array, grid)
    excess, note = judge_excess(placement.pop("over_the_bound"), at_most, is_busy=placement["is_busy"])
    durations_s, stats_of = placement.pop("durations")
    experiment.conclude(
        {"p50": placement["throughput_s"], "over_the_bound": excess}, durations_s, stats_of=stats_of,
        columns=("throughput_s", "least_s", "over_the_bound", "equal_s", "equal_least_s", "stored_per_byte", "counts"),
        extra={**placement, "computed_from_table_2_s": PUBLISHED_S, "loop": "closed"},
        published={"source": "Cloud-RAID, Table II, 10 MB; times of the splits are computed from it"},
        notes=[*(["children are emulated, with the paper's rates"] if is_known else []), *note],
        expect=[
            Expectation(
                str(experiment.provider.spec), "over_the_bound", None, at_most,
                "the least time by the children's profiles; the goal of this suite: --cloudraid-over", GOALS_SINCE,
            )
        ] if is_known else [],
    ).check()  # fmt: skip


def _require_one_agent(experiment: Experiment, reason: str) -> None:
    if experiment.agent.count > 1:
        pytest.skip(f"{reason}: run it without -n")


# --- alternatives -------------------------------------------------------------------------------------


def test_side_by_side(experiment: Experiment, payloads: Payloads, objects: int, size_bytes: int) -> None:
    """An array, rclone's union with crypt, and Tahoe-LAFS, each over folders of this machine."""
    _require_one_agent(experiment, "CPU time is that of one client")
    unmeasured = []
    for name in RIVALS:
        measurement = measure_rival(experiment, payloads, name, objects, size_bytes)
        if isinstance(measurement, str):
            unmeasured.append(f"{name}: not measured: {measurement}")
            continue
        runs, extra, note = measurement
        up_s, down_s = map(median_time_s, runs)
        durations_s, stats_of = list_durations(runs[0], f"an upload to {name}")
        failures = note_failures(dict(zip(("uploads", "downloads"), runs, strict=True)))
        experiment.conclude(
            {"p50": up_s}, durations_s, of=runs, label=name, stats_of=stats_of,
            columns=(
                "system", "put_p50_s", "get_p50_s", "put_mb_per_cpu", "get_mb_per_cpu", "stored_per_byte", "survives",
            ),
            extra={"put_p50_s": up_s, "get_p50_s": down_s, "loop": "closed", **extra},
            notes=[note, *failures, *unmeasured],
        )  # fmt: skip
    if unmeasured:
        experiment.report("\n".join(unmeasured))
