"""Two sides measured in turns by one test: the controller's half.

What may live here: the order of blocks, the decision to stop, and one entry with both sides for each experiment of a
test. ``judge.paired`` computes the differences.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.judge import paired
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.paired import BlockValues, Difference, Pair, Side
from pytest_cloudbench.judge.paired_gate import PairedRuling, judge_pairs
from pytest_cloudbench.judge.watched import Margins, merge_margins, paired_margin
from pytest_cloudbench.load.gate.judged import GatedPairs
from pytest_cloudbench.load.gate.text import difference_text, loss_text
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.merging.merge import NOT_TRIED
from pytest_cloudbench.load.messages import BlockEnded, Subject, Turn
from pytest_cloudbench.results.entry_names import parse_label
from pytest_cloudbench.support.wording import format_count

_SHARED_KEYS = (
    "schema", "machine", "agents", "hosts", "access_line", "time_scale", "seed", "run_id", "published", "operation",
    "loop", "sensors", "threads", "arrival", "size_bytes", "payload", "planned_ops", "for_s",
)  # fmt: skip
"""Keys that an entry takes from the first block, because both sides should share them."""

_EMULATED: Mapping[bool | str, str] = {True: "emulated", "some": "partly emulated", False: "real"}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a comparison of two sides.

    Attributes:
        minutes: for each test, the time after which no further pair begins.
        deciding: the metrics that decide. The comparison stops when one of them differs, or all are answered.
        setup: the user's command before each block, or an empty text.
    """

    minutes: float = 10.0
    deciding: tuple[str, ...] = paired.DECIDING
    setup: str = ""


@dataclass(slots=True)
class _BlockResult:
    """The result of one block for one experiment. ``exclusion`` is the reason if the block is left out."""

    turn: Turn
    subject: Subject
    info: Mapping[str, Any]
    block: BlockValues
    doubts: Sequence[str]
    exclusion: str = ""


@dataclass(slots=True)
class _Contest:
    """One test while its sides are compared. ``results`` and ``margins`` are by the names of its experiments."""

    began_s: float
    turn: Turn = field(default_factory=lambda: Turn(0, "A", 0))
    pair_began_s: float = 0.0
    took_s: list[float] = field(default_factory=list)
    results: dict[str, list[_BlockResult]] = field(default_factory=dict)
    margins: dict[str, Margins] = field(default_factory=dict)


class Contests:
    """The comparisons of a session.

    Args:
        rules: the rules of each comparison.
        entries: take the finished comparisons.
        margins: the margins of the session's gate, None without a gate.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, rules: Rules, entries: Entries, margins: Margins | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._rules, self._entries, self._margins, self._clock = rules, entries, margins, clock
        self._contests: dict[str, _Contest] = {}

    def next_turn(self, item: Item, payloads: Mapping[str, BlockEnded]) -> Turn:
        """Return the next turn, when all agents that did not fail are done with a block."""
        now_s = self._clock()
        contest = self._contests.get(item.nodeid)
        if contest is None:
            self._contests[item.nodeid] = contest = _Contest(now_s, pair_began_s=now_s)
            return contest.turn
        number, stopped = contest.turn.number + 1, ""
        if any(ended.is_skipped for ended in payloads.values()):
            stopped = f"the test was skipped {_describe_block(contest.turn)}"
        elif item.missing or len(payloads) < len(item.entered):
            stopped = f"agents were lost or failed {_describe_block(contest.turn)}"
        elif number % 2 == 0:
            contest.took_s.append(now_s - contest.pair_began_s)
            contest.pair_began_s = now_s
            stopped = self._stop_reason(contest, now_s)
        if stopped:
            properties = self._conclude(item.nodeid, stopped)
            return Turn(number, "", number // 2, is_over=True, properties=properties)
        contest.turn = Turn(number, _side_of(number), number // 2)
        return contest.turn

    def add_block(
        self, subject: Subject, info: Mapping[str, Any], doubts: Sequence[str], quiet_s: Sequence[float],
        margins: Margins = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Add the result of a block for one of a test's experiments, which has margins of its own."""
        contest, turn = self._contests.get(subject.nodeid), subject.turn
        if contest is None or turn is None:
            return
        values = {name: info[name] for name in METRICS if name in info}
        block = BlockValues(values, info.get("ops") or 0, quiet_s)
        missing = info.get("missing_agents")
        if missing:
            exclusion = ", ".join(f"agent {name} {why}" for name, why in missing.items())
        else:
            exclusion = next((doubt for doubt in doubts if doubt.endswith(NOT_TRIED)), "")
        contest.margins[subject.fullname] = merge_margins(self._margins or {}, margins)
        contest.results.setdefault(subject.fullname, []).append(
            _BlockResult(turn, subject, info, block, doubts, exclusion)
        )

    def end_test(self, nodeid: str, outcome: str) -> None:
        """Finish the comparison of a test that failed in a block, with the results until then."""
        if nodeid in self._contests:
            self._conclude(
                nodeid, f"the test {outcome} {_describe_block(self._contests[nodeid].turn)}", is_judged=False
            )

    def close(self, why: str) -> None:
        """Finish all comparisons because the session ends."""
        for nodeid in list(self._contests):
            self._conclude(nodeid, why, is_judged=False)

    def _stop_reason(self, contest: _Contest, now_s: float) -> str:
        """Return the reason if another pair is unnecessary or impossible, or an empty text."""
        rules, elapsed_s = self._rules, now_s - contest.began_s
        differences = {
            name: self._compare_sides(contest, name, _complete_pairs(results))
            for name, results in contest.results.items()
        }
        if differences and self._is_decided(contest, differences):
            return "decided"
        if not contest.results:
            return "the test measured nothing"
        if elapsed_s + contest.took_s[-1] > rules.minutes * 60:
            return f"the budget of {rules.minutes:g} min is used up"
        return ""

    def _is_decided(self, contest: _Contest, by_experiment: Mapping[str, Mapping[str, Difference]]) -> bool:
        """Return whether all experiments have an answer. With a gate, a broken one decides for the whole test."""
        if self._margins is None:
            return all(paired.is_decided(differences, self._rules.deciding) for differences in by_experiment.values())
        answers = [self._judge_sides(contest, name, differences).answer for name, differences in by_experiment.items()]
        return "broken" in answers or "inconclusive" not in answers

    # -- the gate -----------------------------------------------------------------------------------

    def _compare_sides(self, contest: _Contest, name: str, pairs: Mapping[int, Pair]) -> dict[str, Difference]:
        """Compare the sides of one experiment. With a gate, its margins apply."""
        margins = contest.margins[name]

        def margin(metric: str) -> float:
            gate_margin = None if self._margins is None else paired_margin(metric, margins)
            return paired.margin_of(metric) if gate_margin is None else gate_margin

        return paired.compare(list(pairs.values()), self._rules.deciding, margin)

    def _judge_sides(self, contest: _Contest, name: str, differences: Mapping[str, Difference]) -> PairedRuling:
        blocks = [result.block for result in contest.results[name] if result.turn.side == "B"]
        return judge_pairs(differences, self._rules.deciding, contest.margins[name], blocks)

    def _judge_by_gate(
        self, contest: _Contest, subject: Subject, differences: Mapping[str, Difference], stopped: str
    ) -> GatedPairs:
        """Judge one experiment by the gate."""
        ruling = self._judge_sides(contest, subject.fullname, differences)
        label = parse_label(subject.nodeid, subject.fullname)
        line = f"{label}: gate {ruling.answer}: " if label else f"gate {ruling.answer}: "
        texts = {name: difference_text(differences[name]) for name in ruling.answers}
        if ruling.answer == "broken":
            broken = [loss_text(differences[name], share) for name, share in ruling.losses.items()]
            if worse := [texts[name] for name in ruling.giving if name not in ruling.losses]:
                broken.append(f"B is worse than A: {'; '.join(worse)}")
            line += "; ".join(broken)
        else:
            reasons = "; ".join(texts[name] + _needed_text(differences[name]) for name in ruling.giving)
            line += f"{reasons or 'no pair of blocks has a metric that is gated'} ({stopped})"
        parts = {name: f"{ruling.answers[name]} {text.removeprefix(name).partition(', margin')[0].strip()}"
                 for name, text in texts.items()}  # fmt: skip
        return GatedPairs(subject.fullname, subject.nodeid, ruling.answer, [line], parts)

    # -- one entry for both sides -------------------------------------------------------------------

    def _conclude(self, nodeid: str, stopped: str, *, is_judged: bool = True) -> dict[str, str]:
        """Store the entries of a test, and let the gate judge them. Return properties for machine-readable reports."""
        contest, properties = self._contests.pop(nodeid), dict[str, str]()
        elapsed_s = self._clock() - contest.began_s
        for fullname, results in contest.results.items():
            pairs = _complete_pairs(results)
            differences = self._compare_sides(contest, fullname, pairs)
            info = self._entry_info(results, differences, stopped, elapsed_s / 60)
            label = parse_label(nodeid, fullname)
            prefix = f"cloudbench.{label}.versus." if label else "cloudbench.versus."
            properties |= {prefix + name: difference.answer for name, difference in differences.items()}
            properties[prefix + "stopped"] = stopped
            doubts, subject = _list_doubts(results), results[0].subject
            notes = _list_notes(pairs, info["versus"]["emulated"])
            is_gated = is_judged and self._margins is not None
            gated = self._judge_by_gate(contest, subject, differences, stopped) if is_gated else None
            self._entries.add_comparison(subject, info, contest.took_s or [elapsed_s], doubts, notes, gated)
        return properties

    def _entry_info(
        self, results: Sequence[_BlockResult], differences: Mapping[str, Difference], stopped: str, minutes: float
    ) -> dict[str, Any]:
        """Return the entry's extra_info. It has no metric at its top level, so that runs are never compared with it."""
        sides = {result.turn.side: result for result in reversed(results)}
        first = results[0].info
        info = {key: first[key] for key in _SHARED_KEYS if key in first}
        info |= {"outcome": "unfinished", "missing_agents": {}}
        for key in ("profile", "profile_digest", "versions"):
            info[key] = {side: result.info.get(key) for side, result in sorted(sides.items())}
        emulated = {side: result.info.get("emulated", False) for side, result in sorted(sides.items())}
        info["emulated"] = next(iter(emulated.values())) if len({*emulated.values()}) == 1 else "some"
        info["provider"] = " versus ".join(result.subject.shown_provider for _, result in sorted(sides.items()))
        return info | {
            "ops": sum(result.block.ops for result in results),
            "ops_files": [result.info["ops_file"] for result in results if "ops_file" in result.info],
            "stats_of": "time that each pair of blocks took",
            "versus": {
                "A": sides["A"].subject.shown_provider if "A" in sides else None,
                "B": sides["B"].subject.shown_provider if "B" in sides else None,
                "emulated": emulated,
                "locations": {side: r.info["location"] for side, r in sorted(sides.items()) if "location" in r.info},
                "setup": self._rules.setup or None,
                "deciding": list(self._rules.deciding),
                "stopped": stopped,
                "minutes": minutes,
                "pairs": len(_complete_pairs(results)),
                "differences": {name: _plain_difference(difference) for name, difference in differences.items()},
                "blocks": [_plain_block(result) for result in results],
            },
        }


def _side_of(number: int) -> Side:
    """Return the side of a block. The first pair warms up and does not count."""
    return paired.side_of(number - 2 if number >= 2 else number)


def _describe_block(turn: Turn) -> str:
    return f"in block {turn.number} (side {turn.side})"


def _complete_pairs(results: Sequence[_BlockResult]) -> dict[int, Pair]:
    """Return the complete pairs after the warm-up by their numbers, as they were measured."""
    by_pair: dict[int, dict[str, BlockValues]] = {}
    for result in results:
        if result.turn.pair and not result.exclusion:
            by_pair.setdefault(result.turn.pair, {})[result.turn.side] = result.block
    return {pair: (sides["A"], sides["B"]) for pair, sides in sorted(by_pair.items()) if len(sides) == 2}


def _list_doubts(results: Sequence[_BlockResult]) -> list[str]:
    """Return doubts about the comparison: each kind with its number of blocks, and the excluded pairs."""
    counts = Counter(doubt.partition(" (")[0] for result in results if not result.exclusion for doubt in result.doubts)
    counted = [f"{count} of {format_count(len(results), 'block')}: {doubt}" for doubt, count in counts.items()]
    left_out = [
        f"pair {result.turn.pair} is left out: {result.exclusion} {_describe_block(result.turn)}"
        for result in results
        if result.exclusion
    ]
    more = format_count(len(left_out) - 3, "more block is", "more blocks are")
    return [*left_out[:3], *([f"{more} left out"] if len(left_out) > 3 else []), *counted]


def _list_notes(pairs: Mapping[int, Pair], emulated: Mapping[str, bool | str]) -> list[str]:
    first_sides = [_side_of(2 * pair) for pair in pairs]
    notes = paired.remarks(list(pairs.values()), first_sides)
    if len({*emulated.values()}) > 1:
        sides = ", ".join(f"{side} is {_EMULATED[value]}" for side, value in emulated.items())
        notes.insert(0, f"{sides}: their difference is not one between services")
    return notes


def _needed_text(difference: Difference) -> str:
    return f", about {format_count(difference.needed, 'pair')} would tell" if difference.needed is not None else ""


def _plain_difference(difference: Difference) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in asdict(difference).items() if name != "metric"
    }  # fmt: skip


def _plain_block(result: _BlockResult) -> dict[str, Any]:
    turn, info = result.turn, result.info
    return {
        "number": turn.number, "side": turn.side, "pair": turn.pair, "is_warm_up": turn.pair == 0,
        "start_wall_ms": info.get("start_wall_ms"), "ops_file": info.get("ops_file"), "ops": result.block.ops,
        "quiet_ops": len(result.block.quiet_s), "unfit": result.exclusion, "cpu_share": info.get("cpu_share"),
        "values": dict(result.block.values),
    }  # fmt: skip
