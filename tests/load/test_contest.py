"""The controller's half of a comparison of two sides, which stops at an answer or at the end of its time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest

from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.load.gate.judged import GatedPairs
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.messages import BlockEnded, Subject, Turn
from pytest_cloudbench.load.versus.contest import Contests, Rules
from pytest_cloudbench.report import versus

NODE = "t.py::test_it[a-vs-b]"
BlockInfo = Mapping[str, Any]


class RecordedEntries:
    """A session's comparisons."""

    gated: GatedPairs | None = None

    def __init__(self) -> None:
        self.comparisons: list[tuple[dict[str, Any], Sequence[float], list[str], list[str]]] = []

    def add_comparison(
        self, subject: Subject, info: dict[str, Any], data_s: Sequence[float], doubts: list[str], notes: list[str],
        gated: GatedPairs | None,
    ) -> None:  # fmt: skip
        self.comparisons.append((info, data_s, doubts, notes))
        self.gated = gated


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def subject(turn: Turn, label: str = "") -> Subject:
    spec = f"folder:{turn.side.lower()}"
    return Subject("r", NODE, NODE + label, "test_it", "test_it", {}, "f", spec, None, True, {}, turn=turn)


def run(
    rules: Rules,
    show_block: Callable[[Turn], BlockInfo | None],
    *,
    block_s: float = 5.0,
    max_blocks: int = 400,
    label: str = "",
) -> tuple[dict[str, Any], Sequence[float], list[str], list[str], Turn]:
    """Run a test of one agent, with blocks from ``show_block``, until the controller ends the comparison."""
    entries, clock = RecordedEntries(), Clock()
    contests = Contests(rules, cast("Entries", entries), clock=clock)
    item = Item(NODE, members=["main"], entered=["main"])
    for _ in range(max_blocks):
        turn = contests.next_turn(item, {"main": BlockEnded()})
        if turn.is_over:
            (comparison,) = entries.comparisons
            return (*comparison, turn)
        clock.now_s += block_s
        info = {"ops": 100, "planned_ops": 100, "missing_agents": {}, **(show_block(turn) or {})}
        contests.add_block(subject(turn, label), info, info.get("doubts", ()), info.get("quiet_s", ()))
    pytest.fail("it does not end")


def times(seed: int, ratio: float) -> Callable[[Turn], BlockInfo]:
    random = Random(seed)

    def show_block(turn: Turn) -> BlockInfo:
        warm = 5.0 if turn.pair == 0 else 1.0  # a warm-up that counted would spoil everything
        level = 0.1 * warm * (ratio if turn.side == "B" else 1.0) * (1 + random.gauss(0, 0.02))
        return {"response_p50": level, "quiet_s": [level] * 50}

    return show_block


@pytest.mark.parametrize("metric", ["quiet_p50", "response_p50"])
def test_comparison_stops_as_soon_as_it_is_decided(metric: str) -> None:
    info, pairs_s, doubts, _, turn = run(Rules(60, (metric,)), times(1, 1.1), label="#up")
    summary = info["versus"]
    assert (summary["stopped"], summary["differences"][metric]["answer"]) == ("decided", "A better")
    assert summary["differences"][metric]["low"] < 0.1 < summary["differences"][metric]["high"]
    assert 4 <= summary["pairs"] < 20
    assert list(pairs_s) == [10.0] * (summary["pairs"] + 1)
    assert summary["minutes"] == pytest.approx((summary["pairs"] + 1) / 6)
    assert doubts == []
    assert turn.properties[f"cloudbench.up.versus.{metric}"] == "A better"
    lines = "\n".join(versus.render([Finding(info)], 100))
    assert f"{summary['pairs']} pairs of blocks, 100 operations a block, in" in lines
    assert "A better" in lines


OSLO = {
    "place": "within 30 km of Oslo", "operator": "Fjord AS", "nearest_km": 0.0, "farthest_km": 30.0,
    "date": "2026-11-01",
}  # fmt: skip


@pytest.mark.parametrize("located", ["", "A", "AB"])
def test_comparison_shows_server_location_of_each_side(located: str) -> None:
    show_times = times(1, 1.1)

    def show_block(turn: Turn) -> BlockInfo:
        return {**show_times(turn), **({"location": OSLO} if turn.side in located else {})}

    info, *_ = run(Rules(60, ("quiet_p50",)), show_block)
    assert info["versus"]["locations"] == dict.fromkeys(located, OSLO)
    text = "Fjord AS, within 30 km of Oslo, 0-30 km away (located 2026-11-01)"
    expected = [f"  servers of {side}: {text}" for side in located]
    assert [line for line in versus.render([Finding(info)], 100) if "servers of" in line] == expected
    assert [line for line in versus.render_stored(NODE, Finding(info).info, 100) if "servers of" in line] == expected
    assert f"servers of A: {text}" in versus.comparison_remarks(info["versus"]) or not located


class Finding:
    nodeid = NODE

    def __init__(self, info: dict[str, Any], doubts: Sequence[str] = ()) -> None:
        self.info = {"notes": [], **info, "doubts": list(doubts)}


def test_comparison_stops_when_no_further_pair_fits_into_its_time() -> None:
    info, _, _, _, _ = run(Rules(1.0, ("quiet_p99",)), times(2, 1.0))
    summary = info["versus"]
    assert summary["stopped"] == "the budget of 1 min is used up"
    assert summary["pairs"] == 5  # and the warm-up: six pairs of ten seconds
    comparison = summary["differences"]["quiet_p99"]
    assert comparison["answer"] == "inconclusive"
    assert comparison["why"] == "250 quiet operations per side; at least 300 are needed"
    lines = versus.render([Finding(info, ["7 of 12 blocks: engine saturated"])], 100)
    assert [line for line in lines if "quiet_p99: 250 quiet operations" in line and "pairs" in line]
    assert "! 7 of 12 blocks: engine saturated" in lines


def test_incomplete_blocks_are_left_out_and_doubts_are_counted() -> None:
    show_times = times(3, 1.1)

    def show_block(turn: Turn) -> BlockInfo:
        doubts = ["engine saturated (lateness p99 300 ms is over 200 ms)"] if turn.number % 2 else []
        if turn.pair == 3 and turn.side == "A":
            return {"ops": 60, "response_p50": 50.0, "doubts": ["40 of 100 operations were not tried"]}
        return {**show_times(turn), "doubts": doubts}

    info, _, doubts, _, _ = run(Rules(60, ("response_p50",)), show_block)
    summary = info["versus"]
    assert summary["differences"]["response_p50"]["answer"] == "A better"
    assert summary["pairs"] == len(summary["blocks"]) / 2 - 2
    assert doubts[0] == "pair 3 is left out: 40 of 100 operations were not tried in block 7 (side A)"
    assert doubts[1] == f"{len(summary['blocks']) // 2 - 1} of {len(summary['blocks'])} blocks: engine saturated"


def test_lost_agents_end_the_comparison() -> None:
    entries = RecordedEntries()
    contests = Contests(Rules(), cast("Entries", entries), clock=Clock())
    item = Item(NODE, members=["gw0", "gw1"], entered=["gw0", "gw1"])
    turn = contests.next_turn(item, {"gw0": BlockEnded(), "gw1": BlockEnded()})
    contests.add_block(subject(turn), {"ops": 5, "response_p50": 0.1}, [], [])
    assert contests.next_turn(item, {"gw0": BlockEnded()}).is_over
    info = entries.comparisons[0][0]
    assert info["versus"]["stopped"] == "agents were lost or failed in block 0 (side A)"
    assert info["versus"]["differences"] == {}


def test_end_of_session_stores_unfinished_comparisons_once() -> None:
    entries = RecordedEntries()
    contests = Contests(Rules(), cast("Entries", entries), clock=Clock())
    turn = contests.next_turn(Item(NODE, entered=["main"]), {"main": BlockEnded()})
    contests.add_block(subject(turn), {"ops": 5, "response_p50": 0.1}, [], [])
    contests.close("interrupted")
    contests.close("interrupted")
    assert [info["versus"]["stopped"] for info, *_ in entries.comparisons] == ["interrupted"]


def test_a_test_that_measures_nothing_ends_at_once() -> None:
    contests = Contests(Rules(), cast("Entries", RecordedEntries()), clock=Clock())
    item = Item(NODE, entered=["main"])
    turns = [contests.next_turn(item, {"main": BlockEnded()}) for _ in range(3)]
    assert [turn.is_over for turn in turns] == [False, False, True]


# --- with a gate ---


def judge_contest(
    show_block: Callable[[Turn], BlockInfo],
    margins: Mapping[str, float | None],
    *,
    own_margins: Mapping[str, float | None] | None = None,
    minutes: float = 60,
    label: str = "",
) -> tuple[GatedPairs, dict[str, Any]]:
    """Return the gate's answer about a test with blocks from ``show_block``, and its entry."""
    entries, clock = RecordedEntries(), Clock()
    rules = Rules(minutes, ("response_p50",))
    contests = Contests(rules, cast("Entries", entries), margins, clock)
    item = Item(NODE, members=["main"], entered=["main"])
    while not (turn := contests.next_turn(item, {"main": BlockEnded()})).is_over:
        clock.now_s += 5.0
        info = {"ops": 100, "planned_ops": 100, "missing_agents": {}, **show_block(turn)}
        contests.add_block(subject(turn, label), info, (), info.get("quiet_s", ()), own_margins or {})
    assert entries.gated is not None
    return entries.gated, entries.comparisons[0][0]["versus"]


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
def test_margins_of_the_gate_decide(ratio: float, margins: Mapping[str, float | None], answer: str) -> None:
    gated, summary = judge_contest(times(4, ratio), margins, label="#up")
    assert (gated.answer, summary["stopped"]) == (answer, "decided")
    (line,) = gated.lines
    assert line.startswith(f"up: gate {answer}: ")
    assert re.match(rf"(met|{answer}) [+-]", gated.metric_texts["response_p50"])
    expected = margins.get("response_p50", margins.get("p50", 0.1))
    assert summary["differences"]["response_p50"]["margin"] == expected


def test_margins_of_a_test_stand_before_those_of_the_project() -> None:
    gated, summary = judge_contest(
        times(4, 1.5), {"response_p50": 0.1, "quiet_p50": 0.1}, own_margins={"p50": 1.0, "p99": 1.0}
    )
    assert (gated.answer, summary["differences"]["response_p50"]["margin"]) == ("met", 1.0)


def test_line_of_a_broken_comparison_has_the_change_of_b() -> None:
    gated, summary = judge_contest(times(4, 1.5), {})
    comparison = summary["differences"]["response_p50"]
    (line,) = gated.lines
    assert line.startswith("gate broken: B is worse than A: response_p50 +")
    assert f"response_p50 {comparison['change'] * 100:+,.0f} % (" in line
    assert line.endswith("margin 10 %")


@pytest.mark.parametrize("of_a", [0.0, 0.01])
def test_one_lost_file_of_b_breaks_a_comparison_at_once(of_a: float) -> None:
    show_times = times(4, 1.0)

    def show_block(turn: Turn) -> BlockInfo:
        return {**show_times(turn), "silent_loss_rate": 0.01 if turn.side == "B" else of_a}

    gated, summary = judge_contest(show_block, {})
    assert gated.lines == ["gate broken: silent_loss_rate of B is 1 %, 0 % is allowed"]
    assert (summary["pairs"], gated.metric_texts["silent_loss_rate"].split()[0]) == (1, "broken")
    assert judge_contest(show_block, {"silent_loss_rate": 0.02})[0].answer == "met"


def test_a_file_that_b_lost_in_the_warm_up_is_lost() -> None:
    show_times = times(4, 1.0)

    def show_block(turn: Turn) -> BlockInfo:
        return {**show_times(turn), "corrupt_rate": 0.5 if turn.side == "B" and turn.pair == 0 else 0.0}

    gated, summary = judge_contest(show_block, {})
    assert (gated.answer, summary["pairs"]) == ("broken", 1)
    assert gated.lines == ["gate broken: corrupt_rate of B is 25 %, 0 % is allowed"]


def test_undecided_comparison_is_inconclusive_and_names_the_pairs_needed() -> None:
    gated, summary = judge_contest(times(3, 1.07), {"quiet_p50": None}, minutes=2.0)
    assert (gated.answer, summary["stopped"]) == ("inconclusive", "the budget of 2 min is used up")
    assert summary["differences"]["response_p50"]["answer"] == "A better", (
        "without a gate it would have stopped at that"
    )
    (line,) = gated.lines
    assert line.startswith("gate inconclusive: response_p50 +")
    assert line.endswith("margin 10 % (the budget of 2 min is used up)")
    gated, _ = judge_contest(times(4, 1.0), {"p50": 0.001}, minutes=1.0)
    assert re.search(r"margin 0.1 %, about [\d,]+ pairs would tell \(the budget", gated.lines[0])


def test_metric_that_does_not_decide_can_break_a_comparison_but_not_delay_it() -> None:
    show_times = times(5, 1.0)

    def show_block(turn: Turn) -> BlockInfo:
        requests = 3.0 if turn.side == "B" else 2.0
        return {**show_times(turn), "quiet_s": [], "requests_per_op": requests}

    assert judge_contest(show_block, {})[0].lines[0].startswith("gate broken: B is worse than A: requests_per_op +50 %")
    gated, _ = judge_contest(show_block, {"requests_per_op": None})
    assert gated.answer == "met", "quiet_p50 is not known, which delays nothing"


def test_a_rate_is_judged_by_points() -> None:
    show_times = times(6, 1.0)

    def show_block(turn: Turn) -> BlockInfo:
        return {**show_times(turn), "failed_rate": 0.05 if turn.side == "B" else 0.0}

    gated, _ = judge_contest(show_block, {})
    assert "failed_rate +5.0 points" in gated.lines[0]
    assert gated.lines[0].endswith("margin 1 points")
    assert judge_contest(show_block, {"failed_rate": 0.2})[0].answer == "met"


def test_metric_with_higher_is_better() -> None:
    def show_block(ratio: float) -> Callable[[Turn], BlockInfo]:
        level, same = times(7, ratio), times(8, 1.0)
        return lambda turn: {**same(turn), "throughput": level(turn)["response_p50"]}

    assert "throughput -50 %" in judge_contest(show_block(0.5), {"throughput": 0.1})[0].lines[0]
    assert judge_contest(show_block(2.0), {"throughput": 0.1})[0].answer == "met"


def test_no_complete_pair_is_inconclusive() -> None:
    gated, summary = judge_contest(times(9, 1.0), {}, minutes=0.01)
    assert (gated.answer, summary["pairs"]) == ("inconclusive", 0)
    assert gated.lines == [
        "gate inconclusive: no pair of blocks has a metric that is gated (the budget of 0.01 min is used up)"
    ]


def test_a_test_that_failed_is_not_judged() -> None:
    entries = RecordedEntries()
    contests = Contests(Rules(), cast("Entries", entries), {}, Clock())
    turn = contests.next_turn(Item(NODE, entered=["main"]), {"main": BlockEnded()})
    contests.add_block(subject(turn), {"ops": 5, "response_p50": 0.1}, [], [])
    contests.end_test(NODE, "failed")
    assert len(entries.comparisons) == 1
    assert entries.gated is None


@pytest.mark.parametrize(
    ("a", "b", "both", "note"),
    [(True, True, True, ""), (False, False, False, ""),
     (True, False, "some", "A is emulated, B is real: their difference is not one between services"),
     ("some", True, "some", "A is partly emulated, B is emulated: their difference is not one between services")],
)  # fmt: skip
def test_note_tells_that_only_one_side_is_emulated(a: object, b: object, both: object, note: str) -> None:
    info, _, _, notes, _ = run(
        Rules(5.0, ("response_p50",)),
        lambda turn: {"response_p50": 0.1, "emulated": a if turn.side == "A" else b},
    )
    assert (info["emulated"], info["versus"]["emulated"]) == (both, {"A": a, "B": b})
    assert notes == ([note] if note else [])
    assert not note or f"note: {note}" in " ".join(versus.render([Finding(info | {"notes": notes})], 200))
