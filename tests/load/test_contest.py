"""The controller's half of a comparison: it stops at an answer or when the time is up, and says which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest

from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.load.gate.session import GatedPairs
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.messages import BlockEnded, Subject, Turn
from pytest_cloudbench.load.versus.contest import Contests, Rules
from pytest_cloudbench.report import versus

NODE = "t.py::test_it[a-vs-b]"
Shown = Mapping[str, Any]


class Kept:
    """A session's comparisons."""

    gated: GatedPairs | None = None

    def __init__(self) -> None:
        self.found: list[tuple[dict[str, Any], Sequence[float], list[str], list[str]]] = []

    def add_comparison(
        self, subject: Subject, info: dict[str, Any], data_s: Sequence[float], doubts: list[str], notes: list[str],
        gated: GatedPairs | None,
    ) -> None:  # fmt: skip
        self.found.append((info, data_s, doubts, notes))
        self.gated = gated


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def subject(turn: Turn, label: str = "") -> Subject:
    spec = f"folder:{turn.side.lower()}"
    return Subject("r", NODE, NODE + label, "test_it", "test_it", {}, "f", spec, None, True, {}, turn=turn)


def run(
    rules: Rules, shown: Callable[[Turn], Shown | None], *, block_s: float = 5.0, most: int = 400, label: str = ""
) -> tuple[dict[str, Any], Sequence[float], list[str], list[str], Turn]:
    """One test of one agent, whose blocks show what ``shown`` says, until the controller has enough."""
    kept, clock = Kept(), Clock()
    contests = Contests(rules, cast("Entries", kept), clock=clock)
    item = Item(NODE, members=["main"], entered=["main"])
    for _ in range(most):
        turn = contests.next_turn(item, {"main": BlockEnded()})
        if turn.is_over:
            (found,) = kept.found
            return (*found, turn)
        clock.now_s += block_s
        info = {"ops": 100, "planned_ops": 100, "missing_agents": {}, **(shown(turn) or {})}
        contests.add_block(subject(turn, label), info, info.get("doubts", ()), info.get("quiet_s", ()))
    pytest.fail("it does not end")


def times(seed: int, ratio: float) -> Callable[[Turn], Shown]:
    random = Random(seed)

    def shown(turn: Turn) -> Shown:
        warm = 5.0 if turn.pair == 0 else 1.0  # a warm-up that counted would spoil everything
        level = 0.1 * warm * (ratio if turn.side == "B" else 1.0) * (1 + random.gauss(0, 0.02))
        return {"response_p50": level, "quiet_s": [level] * 50}

    return shown


@pytest.mark.parametrize("metric", ["quiet_p50", "response_p50"])
def test_it_stops_as_soon_as_it_is_decided(metric: str) -> None:
    info, pairs_s, doubts, _, turn = run(Rules(60, (metric,)), times(1, 1.1), label="#up")
    told = info["versus"]
    assert (told["stopped"], told["differences"][metric]["answer"]) == ("decided", "A better")
    assert told["differences"][metric]["low"] < 0.1 < told["differences"][metric]["high"]
    assert 4 <= told["pairs"] < 20
    assert list(pairs_s) == [10.0] * (told["pairs"] + 1)
    assert told["minutes"] == pytest.approx((told["pairs"] + 1) / 6)
    assert doubts == []
    assert turn.properties[f"cloudbench.up.versus.{metric}"] == "A better"
    lines = "\n".join(versus.render([Finding(info)], 100))
    assert f"{told['pairs']} pairs of blocks, 100 operations a block, in" in lines
    assert "A better" in lines


class Finding:
    nodeid = NODE

    def __init__(self, info: dict[str, Any], doubts: Sequence[str] = ()) -> None:
        self.info = {"notes": [], **info, "doubts": list(doubts)}


def test_it_stops_when_no_further_pair_fits_into_its_time() -> None:
    info, _, _, _, _ = run(Rules(1.0, ("quiet_p99",)), times(2, 1.0))
    told = info["versus"]
    assert told["stopped"] == "the budget of 1 minutes is used up"
    assert told["pairs"] == 5  # and the warm-up: six pairs of ten seconds
    found = told["differences"]["quiet_p99"]
    assert found["answer"] == "inconclusive"
    assert found["why"] == "250 quiet operations per side; at least 300 are needed"
    lines = versus.render([Finding(info, ["7 of 12 blocks: engine saturated"])], 100)
    assert [line for line in lines if "quiet_p99: 250 quiet operations" in line and "pairs" in line]
    assert "! 7 of 12 blocks: engine saturated" in lines


def test_blocks_that_are_not_whole_are_left_out_and_doubts_are_counted() -> None:
    calm = times(3, 1.1)

    def shown(turn: Turn) -> Shown:
        doubts = ["engine saturated (lateness p99 300 ms is over 200 ms)"] if turn.number % 2 else []
        if turn.pair == 3 and turn.side == "A":
            return {"ops": 60, "response_p50": 50.0, "doubts": ["40 of 100 operations were not tried"]}
        return {**calm(turn), "doubts": doubts}

    info, _, doubts, _, _ = run(Rules(60, ("response_p50",)), shown)
    told = info["versus"]
    assert told["differences"]["response_p50"]["answer"] == "A better"
    assert told["pairs"] == len(told["blocks"]) / 2 - 2
    assert doubts[0] == "pair 3 is left out: 40 of 100 operations were not tried in block 7 (side A)"
    assert doubts[1] == f"{len(told['blocks']) // 2 - 1} of {len(told['blocks'])} blocks: engine saturated"


def test_agents_that_are_gone_end_it() -> None:
    kept = Kept()
    contests = Contests(Rules(), cast("Entries", kept), clock=Clock())
    item = Item(NODE, members=["gw0", "gw1"], entered=["gw0", "gw1"])
    turn = contests.next_turn(item, {"gw0": BlockEnded(), "gw1": BlockEnded()})
    contests.add_block(subject(turn), {"ops": 5, "response_p50": 0.1}, [], [])
    assert contests.next_turn(item, {"gw0": BlockEnded()}).is_over
    info = kept.found[0][0]
    assert info["versus"]["stopped"] == "agents were lost or failed in block 0 (side A)"
    assert info["versus"]["differences"] == {}


def test_a_session_that_ends_keeps_what_there_is() -> None:
    kept = Kept()
    contests = Contests(Rules(), cast("Entries", kept), clock=Clock())
    turn = contests.next_turn(Item(NODE, entered=["main"]), {"main": BlockEnded()})
    contests.add_block(subject(turn), {"ops": 5, "response_p50": 0.1}, [], [])
    contests.close("interrupted")
    contests.close("interrupted")
    assert [info["versus"]["stopped"] for info, *_ in kept.found] == ["interrupted"]


def test_a_test_that_measures_nothing_ends_at_once() -> None:
    contests = Contests(Rules(), cast("Entries", Kept()), clock=Clock())
    item = Item(NODE, entered=["main"])
    turns = [contests.next_turn(item, {"main": BlockEnded()}) for _ in range(3)]
    assert [turn.is_over for turn in turns] == [False, False, True]


# --- with a gate ---


def judged(
    shown: Callable[[Turn], Shown], margins: Mapping[str, float | None], *, minutes: float = 60, label: str = ""
) -> tuple[GatedPairs, dict[str, Any]]:
    """What a gate says of a test whose blocks show ``shown``, and the entry."""
    kept, clock = Kept(), Clock()
    rules = Rules(minutes, ("response_p50",))
    contests = Contests(rules, cast("Entries", kept), margins, clock)
    item = Item(NODE, members=["main"], entered=["main"])
    while not (turn := contests.next_turn(item, {"main": BlockEnded()})).is_over:
        clock.now_s += 5.0
        info = {"ops": 100, "planned_ops": 100, "missing_agents": {}, **shown(turn)}
        contests.add_block(subject(turn, label), info, (), info.get("quiet_s", ()))
    assert kept.gated is not None
    return kept.gated, kept.found[0][0]["versus"]


@pytest.mark.parametrize(
    ("ratio", "margins", "answer"),
    [
        (1.5, {}, "broken"),
        (1.5, {"p50": 1.0, "p99": 1.0}, "met"),
        (1.5, {"response_p50": 1.0, "quiet_p50": None, "p99": None}, "met"),
        (1.5, {"response_p50": 1.0}, "broken"),  # by quiet_p50, which the gate watches as well
        (1.0, {}, "met"),
        (0.5, {}, "met"),
        (1.05, {}, "met"),
        (1.05, {"p50": 0.02}, "broken"),
        (1.05, {"p50": 0.02, "response_p50": 0.1, "quiet_p50": None}, "met"),
    ],
)
def test_the_margins_of_the_gate_decide_when_there_is_one(
    ratio: float, margins: Mapping[str, float | None], answer: str
) -> None:
    gated, told = judged(times(4, ratio), margins, label="#up")
    assert (gated.answer, told["stopped"]) == (answer, "decided")
    (line,) = gated.lines
    assert line.startswith(f"up: gate {answer}: ")
    assert re.match(rf"(met|{answer}) [+-]", gated.told["response_p50"])
    expected = margins.get("response_p50", margins.get("p50", 0.1))
    assert told["differences"]["response_p50"]["margin"] == expected


def test_the_line_of_a_broken_comparison_says_how_much_worse_b_is() -> None:
    gated, told = judged(times(4, 1.5), {})
    found = told["differences"]["response_p50"]
    (line,) = gated.lines
    assert line.startswith("gate broken: B is worse than A: response_p50 +")
    assert f"response_p50 {found['change'] * 100:+,.0f} % (" in line
    assert line.endswith("margin 10 %")


def test_what_the_time_does_not_decide_is_inconclusive_and_says_what_would() -> None:
    gated, told = judged(times(3, 1.07), {"quiet_p50": None}, minutes=2.0)
    assert (gated.answer, told["stopped"]) == ("inconclusive", "the budget of 2 minutes is used up")
    assert told["differences"]["response_p50"]["answer"] == "A better", "without a gate it would have stopped at that"
    (line,) = gated.lines
    assert line.startswith("gate inconclusive: response_p50 +")
    assert line.endswith("margin 10 % (the budget of 2 minutes is used up)")
    gated, _ = judged(times(4, 1.0), {"p50": 0.001}, minutes=1.0)
    assert re.search(r"margin 0.1 %, about [\d,]+ pairs would tell \(the budget", gated.lines[0])


def test_what_does_not_decide_can_break_it_and_cannot_hold_it_up() -> None:
    same = times(5, 1.0)

    def shown(turn: Turn) -> Shown:
        requests = 3.0 if turn.side == "B" else 2.0
        return {**same(turn), "quiet_s": [], "requests_per_op": requests}

    assert judged(shown, {})[0].lines[0].startswith("gate broken: B is worse than A: requests_per_op +50 %")
    gated, _ = judged(shown, {"requests_per_op": None})
    assert gated.answer == "met", "quiet_p50 is not known, which delays nothing"


def test_a_rate_is_judged_by_points() -> None:
    same = times(6, 1.0)

    def shown(turn: Turn) -> Shown:
        return {**same(turn), "failed_rate": 0.05 if turn.side == "B" else 0.0}

    gated, _ = judged(shown, {})
    assert "failed_rate +5.0 points" in gated.lines[0]
    assert gated.lines[0].endswith("margin 1 points")
    assert judged(shown, {"failed_rate": 0.2})[0].answer == "met"


def test_a_higher_number_can_be_the_better_one() -> None:
    def shown(ratio: float) -> Callable[[Turn], Shown]:
        level, same = times(7, ratio), times(8, 1.0)
        return lambda turn: {**same(turn), "throughput": level(turn)["response_p50"]}

    assert "throughput -50 %" in judged(shown(0.5), {"throughput": 0.1})[0].lines[0]
    assert judged(shown(2.0), {"throughput": 0.1})[0].answer == "met"


def test_no_complete_pair_is_inconclusive() -> None:
    gated, told = judged(times(9, 1.0), {}, minutes=0.01)
    assert (gated.answer, told["pairs"]) == ("inconclusive", 0)
    assert gated.lines == [
        "gate inconclusive: no pair of blocks has a metric that is gated (the budget of 0.01 minutes is used up)"
    ]


def test_a_test_that_failed_is_not_judged() -> None:
    kept = Kept()
    contests = Contests(Rules(), cast("Entries", kept), {}, Clock())
    turn = contests.next_turn(Item(NODE, entered=["main"]), {"main": BlockEnded()})
    contests.add_block(subject(turn), {"ops": 5, "response_p50": 0.1}, [], [])
    contests.end_test(NODE, "failed")
    assert len(kept.found) == 1
    assert kept.gated is None


@pytest.mark.parametrize(
    ("a", "b", "both", "note"),
    [(True, True, True, ""), (False, False, False, ""),
     (True, False, "some", "A is emulated, B is real: their difference is not one between services"),
     ("some", True, "some", "A is partly emulated, B is emulated: their difference is not one between services")],
)  # fmt: skip
def test_sides_of_different_natures_are_told_apart(a: object, b: object, both: object, note: str) -> None:
    info, _, _, notes, _ = run(
        Rules(5.0, ("response_p50",)),
        lambda turn: {"response_p50": 0.1, "emulated": a if turn.side == "A" else b},
    )
    assert (info["emulated"], info["versus"]["emulated"]) == (both, {"A": a, "B": b})
    assert notes == ([note] if note else [])
    assert not note or f"note: {note}" in " ".join(versus.render([Finding(info | {"notes": notes})], 200))
