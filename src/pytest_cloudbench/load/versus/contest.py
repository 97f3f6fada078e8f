"""Two sides measured in turns by one test: the controller's half.

What may live here: whose block is next, when it is enough, and what the blocks of a test become: one entry with both
sides for each of its experiments. How far the sides are apart is ``judge.paired``'s to say.
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
from pytest_cloudbench.judge.watched import Margins, paired_margin
from pytest_cloudbench.load.gate.session import GatedPairs
from pytest_cloudbench.load.gate.text import difference_text
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.merging.merge import NOT_TRIED
from pytest_cloudbench.load.messages import BlockEnded, Subject, Turn
from pytest_cloudbench.load.names import parse_label

_OF_ENTRY = (
    "schema", "machine", "agents", "time_scale", "seed", "run_id", "published", "operation", "loop", "sensors",
    "threads", "arrival", "size_bytes", "payload", "planned_ops", "for_s",
)  # fmt: skip
"""What both sides have in common, or should."""

_EMULATED: Mapping[bool | str, str] = {True: "emulated", "some": "partly emulated", False: "real"}


@dataclass(frozen=True, slots=True)
class Rules:
    """How long two sides are compared, and by what.

    Attributes:
        minutes: for each test, the time after which no further pair begins.
        deciding: the metrics for which it is measured; it stops when one of them differs, or all are answered.
        setup: the user's command before each block, or an empty text.
    """

    minutes: float = 10.0
    deciding: tuple[str, ...] = paired.DECIDING
    setup: str = ""


@dataclass(slots=True)
class _Shown:
    """What one block has shown of one experiment."""

    turn: Turn
    subject: Subject
    info: Mapping[str, Any]
    block: BlockValues
    doubts: Sequence[str]
    unfit: str = ""


@dataclass(slots=True)
class _Contest:
    """One test while its sides are compared; ``shown`` and ``margins`` by the names of its experiments."""

    began_s: float
    turn: Turn = field(default_factory=lambda: Turn(0, "A", 0))
    pair_began_s: float = 0.0
    took_s: list[float] = field(default_factory=list)
    shown: dict[str, list[_Shown]] = field(default_factory=dict)
    margins: dict[str, Margins] = field(default_factory=dict)


class Contests:
    """The comparisons of a session.

    Args:
        rules: how long, and by what.
        entries: where they are stored.
        margins: by which the session's gate judges them; None without a gate.
        clock: seconds, monotonic.
    """

    def __init__(
        self, rules: Rules, entries: Entries, margins: Margins | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._rules, self._entries, self._margins, self._clock = rules, entries, margins, clock
        self._open: dict[str, _Contest] = {}

    def next(self, item: Item, payloads: Mapping[str, BlockEnded]) -> Turn:
        """All agents that did not fail are done with a block. Return whose turn it is now."""
        now_s = self._clock()
        contest = self._open.get(item.nodeid)
        if contest is None:
            self._open[item.nodeid] = contest = _Contest(now_s, pair_began_s=now_s)
            return contest.turn
        number, stopped = contest.turn.number + 1, ""
        if any(each.is_skipped for each in payloads.values()):
            stopped = f"the test was skipped {_of(contest.turn)}"
        elif item.missing or len(payloads) < len(item.entered):
            stopped = f"agents were lost or failed {_of(contest.turn)}"
        elif number % 2 == 0:
            contest.took_s.append(now_s - contest.pair_began_s)
            contest.pair_began_s = now_s
            stopped = self._enough(contest, now_s)
        if stopped:
            told = self._conclude(item.nodeid, stopped)
            return Turn(number, "", number // 2, is_over=True, properties=told)
        contest.turn = Turn(number, _side_of(number), number // 2)
        return contest.turn

    def add(
        self, subject: Subject, info: Mapping[str, Any], doubts: Sequence[str], quiet_s: Sequence[float],
        margins: Margins = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """A block has shown something of one of a test's experiments, which has margins of its own."""
        contest, turn = self._open.get(subject.nodeid), subject.turn
        if contest is None or turn is None:
            return
        values = {name: info[name] for name in METRICS if name in info}
        block = BlockValues(values, info.get("ops") or 0, quiet_s)
        missing = info.get("missing_agents")
        unfit = next((doubt for doubt in doubts if doubt.endswith(NOT_TRIED)), "")
        unfit = ", ".join(f"agent {name} {why}" for name, why in missing.items()) if missing else unfit
        contest.margins[subject.fullname] = {**(self._margins or {}), **margins}
        contest.shown.setdefault(subject.fullname, []).append(_Shown(turn, subject, info, block, doubts, unfit))

    def ended(self, nodeid: str, outcome: str) -> None:
        """A test has ended: if it failed in a block, what was measured until then is kept."""
        if nodeid in self._open:
            self._conclude(nodeid, f"the test {outcome} {_of(self._open[nodeid].turn)}", is_judged=False)

    def close(self, why: str) -> None:
        """The session ends."""
        for nodeid in list(self._open):
            self._conclude(nodeid, why, is_judged=False)

    def _enough(self, contest: _Contest, now_s: float) -> str:
        """Return why another pair is not needed, or not possible; empty if it is."""
        rules, elapsed_s = self._rules, now_s - contest.began_s
        found = {name: self._compared(contest, name, _pairs(shown)) for name, shown in contest.shown.items()}
        if found and self._is_decided(contest, found):
            return "decided"
        if not contest.shown:
            return "the test measured nothing"
        if elapsed_s + contest.took_s[-1] > rules.minutes * 60:
            return f"the budget of {rules.minutes:g} minutes is used up"
        return ""

    def _is_decided(self, contest: _Contest, found: Mapping[str, Mapping[str, Difference]]) -> bool:
        """Return whether all experiments have their answer, or with a gate, whether the test has its own."""
        if self._margins is None:
            return all(paired.is_decided(differences, self._rules.deciding) for differences in found.values())
        answers = [self._ruling(contest, name, each).answer for name, each in found.items()]
        return "broken" in answers or "inconclusive" not in answers

    # -- the gate -----------------------------------------------------------------------------------

    def _compared(self, contest: _Contest, name: str, pairs: Mapping[int, Pair]) -> dict[str, Difference]:
        """Compare the sides of one experiment, with a gate by its margins."""
        margins = contest.margins[name]

        def margin(metric: str) -> float:
            given = None if self._margins is None else paired_margin(metric, margins)
            return paired.margin_of(metric) if given is None else given

        return paired.compare(list(pairs.values()), self._rules.deciding, margin)

    def _ruling(self, contest: _Contest, name: str, differences: Mapping[str, Difference]) -> PairedRuling:
        return judge_pairs(differences, self._rules.deciding, contest.margins[name])

    def _gated(
        self, contest: _Contest, subject: Subject, differences: Mapping[str, Difference], stopped: str
    ) -> GatedPairs:
        """Judge one experiment."""
        ruling = self._ruling(contest, subject.fullname, differences)
        label = parse_label(subject.nodeid, subject.fullname)
        line = f"{label}: gate {ruling.answer}: " if label else f"gate {ruling.answer}: "
        texts = {name: difference_text(differences[name]) for name in ruling.answers}
        if ruling.answer == "broken":
            line += f"B is worse than A: {'; '.join(texts[name] for name in ruling.giving)}"
        else:
            told = "; ".join(texts[name] + _needed(differences[name]) for name in ruling.giving)
            line += f"{told or 'no pair of blocks has a metric that is gated'} ({stopped})"
        parts = {name: f"{ruling.answers[name]} {text.removeprefix(name).partition(', margin')[0].strip()}"
                 for name, text in texts.items()}  # fmt: skip
        return GatedPairs(subject.fullname, subject.nodeid, ruling.answer, [line], parts)

    # -- one entry for both sides -------------------------------------------------------------------

    def _conclude(self, nodeid: str, stopped: str, *, is_judged: bool = True) -> dict[str, str]:
        """Store what was found, and let the gate judge it. Return what machine-readable reports say about it."""
        contest, told = self._open.pop(nodeid), dict[str, str]()
        elapsed_s = self._clock() - contest.began_s
        for fullname, shown in contest.shown.items():
            pairs = _pairs(shown)
            differences = self._compared(contest, fullname, pairs)
            info = self._info(shown, differences, stopped, elapsed_s / 60)
            label = parse_label(nodeid, fullname)
            prefix = f"cloudbench.{label}.versus." if label else "cloudbench.versus."
            told |= {prefix + name: each.answer for name, each in differences.items()}
            told[prefix + "stopped"] = stopped
            doubts, notes, subject = _doubts(shown), _notes(pairs, info["versus"]["emulated"]), shown[0].subject
            is_gated = is_judged and self._margins is not None
            gated = self._gated(contest, subject, differences, stopped) if is_gated else None
            self._entries.add_comparison(subject, info, contest.took_s or [elapsed_s], doubts, notes, gated)
        return told

    def _info(
        self, shown: Sequence[_Shown], differences: Mapping[str, Difference], stopped: str, minutes: float
    ) -> dict[str, Any]:
        """Return the entry's extra_info. It has no metric at its top level, so that no run is compared with it."""
        sides = {each.turn.side: each for each in reversed(shown)}
        first = shown[0].info
        info = {key: first[key] for key in _OF_ENTRY if key in first} | {"outcome": "unfinished", "missing_agents": {}}
        for key in ("profile", "profile_digest", "versions"):
            info[key] = {side: each.info.get(key) for side, each in sorted(sides.items())}
        emulated = {side: each.info.get("emulated", False) for side, each in sorted(sides.items())}
        info["emulated"] = next(iter(emulated.values())) if len({*emulated.values()}) == 1 else "some"
        info["provider"] = " versus ".join(each.subject.provider for _, each in sorted(sides.items()))
        return info | {
            "ops": sum(each.block.ops for each in shown),
            "ops_files": [each.info["ops_file"] for each in shown if "ops_file" in each.info],
            "stats_of": "time that each pair of blocks took",
            "versus": {
                "A": sides["A"].subject.provider if "A" in sides else None,
                "B": sides["B"].subject.provider if "B" in sides else None,
                "emulated": emulated,
                "setup": self._rules.setup or None,
                "deciding": list(self._rules.deciding),
                "stopped": stopped,
                "minutes": minutes,
                "pairs": len(_pairs(shown)),
                "differences": {name: _plain(each) for name, each in differences.items()},
                "blocks": [_plain_block(each) for each in shown],
            },
        }


def _side_of(number: int) -> Side:
    """Return the side of a block: the first pair warms up and does not count."""
    return paired.side_of(number - 2 if number >= 2 else number)


def _of(turn: Turn) -> str:
    return f"in block {turn.number} (side {turn.side})"


def _pairs(shown: Sequence[_Shown]) -> dict[int, Pair]:
    """Return the complete pairs after the warm-up by their numbers, as they were measured."""
    by_pair: dict[int, dict[str, BlockValues]] = {}
    for each in shown:
        if each.turn.pair and not each.unfit:
            by_pair.setdefault(each.turn.pair, {})[each.turn.side] = each.block
    return {pair: (sides["A"], sides["B"]) for pair, sides in sorted(by_pair.items()) if len(sides) == 2}


def _doubts(shown: Sequence[_Shown]) -> list[str]:
    """Return why the comparison may be wrong: each kind of doubt with the number of blocks that had it."""
    counts = Counter(doubt.partition(" (")[0] for each in shown if not each.unfit for doubt in each.doubts)
    told = [f"{count} of {len(shown)} blocks: {doubt}" for doubt, count in counts.items()]
    out = [f"pair {each.turn.pair} is left out: {each.unfit} {_of(each.turn)}" for each in shown if each.unfit]
    return [*out[:3], *([f"{len(out) - 3} more blocks are left out"] if len(out) > 3 else []), *told]


def _notes(pairs: Mapping[int, Pair], emulated: Mapping[str, bool | str]) -> list[str]:
    firsts = [_side_of(2 * pair) for pair in pairs]
    told = paired.remarks(list(pairs.values()), firsts)
    if len({*emulated.values()}) > 1:
        sides = ", ".join(f"{side} is {_EMULATED[each]}" for side, each in emulated.items())
        told.insert(0, f"{sides}: their difference is not one between services")
    return told


def _needed(difference: Difference) -> str:
    return f", about {difference.needed:,} pairs would tell" if difference.needed is not None else ""


def _plain(difference: Difference) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in asdict(difference).items() if name != "metric"
    }  # fmt: skip


def _plain_block(each: _Shown) -> dict[str, Any]:
    turn, info = each.turn, each.info
    return {
        "number": turn.number, "side": turn.side, "pair": turn.pair, "is_warm_up": turn.pair == 0,
        "start_wall_ms": info.get("start_wall_ms"), "ops_file": info.get("ops_file"), "ops": each.block.ops,
        "quiet_ops": len(each.block.quiet_s), "unfit": each.unfit, "cpu_share": info.get("cpu_share"),
        "values": dict(each.block.values),
    }  # fmt: skip
