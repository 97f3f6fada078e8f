"""Tests of claims: any text gives a list of claims or one clear line, and an unknown number is never "met"."""

from __future__ import annotations

import datetime
import json
import re
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.baseline import BaselineValue
from pytest_cloudbench.judge.expect import (
    Expectation,
    Gate,
    Judgement,
    judge_expectation,
    judge_gate,
    parse_expectations,
    parse_gate,
    select,
)
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import ConfigError, UsageError
from tests.limits import scale_examples

MANY = settings(deadline=None, max_examples=scale_examples(200))
DATE = datetime.date(2014, 11, 5)
GOOD = """
[[expect]]
provider = "emulated:one"
metric = "loss_rate"
at_most = 0.1
source = "thesis, Table 4.2"
date = 2014-11-05
where = {test = "test_table", sensors = 50}

[[expect]]
provider = "emulated:one"
metric = "throughput"
at_least = 1000
at_most = 2000.5
source = "us"
date = 2025-01-02
"""


def claim(metric: str = "loss_rate", at_least: float | None = None, at_most: float | None = 0.1, **where: Any) -> Any:
    return Expectation("emulated:one", metric, at_least, at_most, "Table 4.2", DATE, where)


# --- the file ---


def test_a_good_file_is_read() -> None:
    where = {"test": "test_table", "sensors": 50}
    assert parse_expectations(GOOD, "e.toml") == [
        Expectation("emulated:one", "loss_rate", None, 0.1, "thesis, Table 4.2", DATE, where),
        Expectation("emulated:one", "throughput", 1000, 2000.5, "us", datetime.date(2025, 1, 2)),
    ]


def test_an_empty_file_holds_no_claim() -> None:
    assert parse_expectations("", "e.toml") == []
    assert parse_expectations("# nothing yet\n", "e.toml") == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('provider = "emulated:one"', "", "expect[0].provider: is missing"),
        ('metric = "loss_rate"', "", "expect[0].metric: is missing"),
        ('source = "thesis, Table 4.2"', "", "expect[0].source: is missing"),
        ("date = 2014-11-05", "", "expect[0].date: is missing"),
        (
            '"emulated:one"',
            '"emulated:*"',
            "expect[0].provider: expected one provider, as --provider names it, or emulated:PROFILE; patterns match "
            "nothing, found 'emulated:*'",
        ),
        ("at_most = 0.1", "", "expect[0]: expected at_least, at_most or both"),
        ("at_most = 0.1", "at_most = 0.1\nat_least = 0.2", "expect[0]: at_least 0.2 is above at_most 0.1"),
        ("at_most = 0.1", 'at_most = "0.1"', "expect[0].at_most: expected int or float, found '0.1'"),
        ("at_most = 0.1", "at_most = true", "expect[0].at_most: expected int or float, found True"),
        ("at_most = 0.1", "at_most = nan", "expect[0].at_most: expected a finite number, found nan"),
        ("at_most = 0.1", "at_most = -inf", "expect[0].at_most: expected a finite number, found -inf"),
        ("at_most = 0.1", "atmost = 0.1", "expect[0].atmost: unknown key 'atmost'; did you mean at_most?"),
        ("date = 2014-11-05", 'date = "2014-11-05"', "expect[0].date: expected date, found '2014-11-05'"),
        ('"loss_rate"', '"lossrate"', "expect[0].metric: unknown metric 'lossrate'; did you mean loss_rate?"),
        ("at_most = 2000.5", "at_most = 999", "expect[1]: at_least 1000 is above at_most 999"),
        ("{test", "3 # {test", "expect[0].where: expected dict, found 3"),
        ("[[expect]]\n", "[[expects]]\n", "expects: unknown key; expected only [[expect]] tables"),
        (GOOD, "expect = 3", "expect: expected [[expect]] tables"),
        (GOOD, "expect = [3]", "expect: expected [[expect]] tables"),
        (GOOD, "[expect]\na = 1", "expect: expected [[expect]] tables"),
        (GOOD, "= 3", "is not valid TOML: "),
    ],
)
def test_wrong_file_is_refused_in_one_line_naming_its_key(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_expectations(GOOD.replace(old, new, 1), "some/e.toml")
    assert str(caught.value).startswith(f"some/e.toml: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "9" * 5000, "1e999"])
def test_a_number_that_no_measurement_can_reach_is_refused_and_breaks_nothing(number: str) -> None:
    """TOML's integers have no bound in Python, but there is no float to compare them with."""
    with pytest.raises(ConfigError, match=r"e\.toml: "):
        parse_expectations(GOOD.replace("at_most = 0.1", f"at_most = {number}"), "e.toml")


def check_any_text(text: str) -> None:
    """Check that a text gives claims that can be judged, or one ConfigError that names the file."""
    try:
        claims = parse_expectations(text, "some/e.toml")
    except ConfigError as error:
        line = str(error)
        assert line.startswith("some/e.toml: ")
        assert "\n" not in line
        return
    for expectation in claims:
        assert isinstance(expectation, Expectation)
        for value in (0.0, 1.5, None):
            assert judge_expectation(expectation, {expectation.metric: value}, []).status in (
                "met",
                "broken",
                "unknown",
            )
        assert select([expectation], [expectation.provider], "test_it", {}) in ([expectation], [])


PIECES = st.sampled_from(
    '[[expect]]|[expect]|\n|=| |"|\'|"""|{|}|[|]|,|.|#|\\|\\u0000|provider|metric|at_most|at_least|source|date|where|'
    "loss_rate|1|-0|1e5|nan|inf|true|2014-11-05|12:00:00|0x|_|\x00|é|\r".split("|")
)


@MANY
@given(text=st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
@example(text="a = " + "[" * 20_000)
@example(text="a = " + "9" * 10_000)
@example(text="[[expect]]\n" * 3)
@example(text="'' = 1")
@example(text='"two\\nlines" = 1')
@example(text='[[expect]]\n"two\\nlines" = 1')
@example(text="[[expect]]\nsource = 0x" + "f" * 5000)
def test_any_text_is_read_or_refused(text: str) -> None:
    check_any_text(text)


@MANY
@given(data=st.data())
def test_any_damage_to_a_good_file_is_read_or_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 12)))
    check_any_text(GOOD[:start] + data.draw(st.one_of(PIECES, st.text(max_size=3))) + GOOD[end:])


def toml(value: Any) -> str:
    """Return any value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


scalars = st.one_of(
    st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(st.characters(max_codepoint=1000), max_size=5),
    st.dates(), st.datetimes(), st.times(),
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab "), inner, max_size=3))
)
likely: dict[str, st.SearchStrategy[Any]] = {
    "provider": st.just("emulated:one"),
    "metric": st.sampled_from([*METRICS]),
    "at_least": st.floats(0, 1),
    "at_most": st.floats(0, 1),
    "source": st.text("abc"),
    "date": st.dates(datetime.date(1000, 1, 1)),
    "where": st.dictionaries(st.sampled_from(["test", "sensors", "test it"]), values, max_size=2),
}
tables = st.fixed_dictionaries(
    {}, optional={**{key: st.one_of(usual, usual, usual, values) for key, usual in likely.items()}, "other": values}
)


@MANY
@given(document=st.lists(tables, max_size=3))
def test_any_document_is_read_or_refused(document: list[dict[str, Any]]) -> None:
    check_any_text(f"expect = {toml(document)}")


@MANY
@given(table=st.fixed_dictionaries({**likely, "at_least": st.floats(0, 1), "at_most": st.floats(1, 2)}))
def test_every_right_document_is_read(table: dict[str, Any]) -> None:
    (expectation,) = parse_expectations(f"expect = [{toml(table)}]", "e.toml")
    assert {name: getattr(expectation, name) for name in Expectation.__slots__ if name != "where"} == {
        name: value for name, value in table.items() if name != "where"
    }
    assert toml(dict(expectation.where)) == toml(table["where"])


# --- choosing and judging ---


def test_select_takes_claims_of_the_provider_with_all_conditions_met() -> None:
    unconditional, for_50_sensors, for_500_sensors = claim(), claim(sensors=50, test="test_it"), claim(sensors=500)
    of_real = Expectation("real", "loss_rate", None, 0.1, "us", DATE)
    names = ["emulated:one", "folder:/x"]
    claims = [unconditional, for_50_sensors, for_500_sensors, of_real]
    assert select(claims, names, "test_it", {"sensors": 50, "interval_s": 5}) == [unconditional, for_50_sensors]
    assert select(claims, names, "test_other", {"sensors": 50}) == [unconditional]
    assert select(claims, names, "test_it", {"sensors": 500}) == [unconditional, for_500_sensors]
    assert select(claims, names, "test_it", {}) == [unconditional]
    assert select(claims, ["real"], "test_it", {"sensors": 50}) == [of_real]
    assert select(claims, [], "test_it", {"sensors": 50}) == []


def test_a_parameter_called_test_does_not_hide_the_name_of_the_function() -> None:
    of_function, of_value = claim(test="test_it"), claim(test="value")
    assert select([of_function, of_value], ["emulated:one"], "test_it", {"test": "value"}) == [of_function]


@pytest.mark.parametrize(
    ("at_least", "at_most", "value", "status"),
    [
        (None, 0.1, 0.1, "met"),
        (None, 0.1, 0.1000001, "broken"),
        (0.1, None, 0.1, "met"),
        (0.1, None, 0.0999, "broken"),
        (0.1, 0.2, 0.15, "met"),
        (0.1, 0.2, 0.05, "broken"),
        (0.1, 0.2, 0.25, "broken"),
        (0, 0, 0.0, "met"),
        (None, 0.1, None, "unknown"),
    ],
)
def test_an_expectation_is_met_broken_or_unknown(
    at_least: float | None, at_most: float | None, value: float | None, status: str
) -> None:
    metrics = {"loss_rate": value}
    assert judge_expectation(claim(at_least=at_least, at_most=at_most), metrics, []).status == status
    assert judge_expectation(claim(at_least=at_least, at_most=at_most), metrics, ["late"]).status == "unknown"


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_a_number_that_is_not_finite_meets_and_breaks_nothing(value: float) -> None:
    """It is what a division by a time of nothing gives."""
    for bounds in ({"at_least": 1.0, "at_most": None}, {"at_most": 1.0}, {"at_least": 0.0, "at_most": 2.0}):
        assert judge_expectation(claim("throughput", **bounds), {"throughput": value}, []).status == "unknown"
    for text in ("throughput:5", "elapsed:5", "throughput:10%", "elapsed:10%"):
        gate = parse_gate(text)
        judgement = judge_gate(gate, {gate.metric: value}, BaselineValue(4.0), [])
        assert judgement == Judgement("unknown", f"gate {text}: unknown, no value was measured")


def test_the_line_of_an_expectation_says_bound_source_date_and_value() -> None:
    expectation, text = claim(at_least=0.05), "loss_rate >= 0.05 and <= 0.1 (Table 4.2, 2014-11-05): "
    assert judge_expectation(expectation, {"loss_rate": 0.25}, []) == Judgement(
        "broken", text + "broken, measured 0.25"
    )
    assert judge_expectation(expectation, {"loss_rate": 0.07}, []) == Judgement("met", text + "met, measured 0.07")
    assert judge_expectation(expectation, {}, []) == Judgement("unknown", text + "unknown, no value was measured")
    assert judge_expectation(expectation, {"loss_rate": 0.07}, ["engine saturated", "gw1 was lost"]) == Judgement(
        "unknown", text + "unknown, engine saturated; gw1 was lost"
    )


# --- gates ---


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("loss_rate:0.01", Gate("loss_rate", 0.01, False)),
        (" response_p99:10% ", Gate("response_p99", 0.1, True)),
        ("response_p99.9:0", Gate("response_p99.9", 0.0, False)),
        ("throughput:5e6", Gate("throughput", 5e6, False)),
        ("loss_rate:0%", Gate("loss_rate", 0.0, True)),
    ],
)
def test_a_gate_is_read(text: str, gate: Gate) -> None:
    assert parse_gate(text) == gate
    assert parse_gate(gate.text) == gate


@pytest.mark.parametrize(
    "text",
    ["", ":", "loss_rate", "loss_rate:", "loss_rate:%", "loss_rate:-1", "loss_rate:nan", "loss_rate:inf%", ":0.1",
     "p99:1", "loss_rate:1%%", "loss_rate:1e999", "loss_rate:1:2", "Loss_rate:1", "loss_rate:10 ms"],
)  # fmt: skip
def test_wrong_gate_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=rf"^gate {re.escape(repr(text))}: expected ") as caught:
        parse_gate(text)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_gate_that_nothing_can_break_is_refused() -> None:
    """A rate that is 100 % worse is 0, and no rate is below 0."""
    assert parse_gate("ok_rate:99%") == Gate("ok_rate", 0.99, True)
    assert parse_gate("response_p99:200%") == Gate("response_p99", 2.0, True)
    with pytest.raises(UsageError, match=r"^gate .ok_rate:100%.: can never be broken"):
        parse_gate("ok_rate:100%")


@MANY
@given(
    text=st.one_of(
        st.text(),
        st.builds("{}{}{}{}".format, st.sampled_from([*METRICS, "p99"]), st.sampled_from(":= "),
                  st.one_of(st.floats(), st.integers(), st.text(max_size=4)), st.sampled_from(["", "%", "%%", " "])),
    )
)  # fmt: skip
def test_any_text_is_a_gate_or_a_usage_error(text: str) -> None:
    try:
        gate = parse_gate(text)
    except UsageError as error:
        line = str(error)
        assert repr(text) in line
        assert "\n" not in line
    else:
        assert gate.metric in METRICS
        assert isfinite(gate.limit)
        assert gate.limit >= 0
        assert judge_gate(gate, {gate.metric: 1.0}, BaselineValue(1.0), []).status in ("met", "broken")


def status(text: str, value: float | None, former: Any = None, doubts: tuple[str, ...] = ()) -> str:
    gate = parse_gate(text)
    compared = None if former is None else BaselineValue(former)
    return judge_gate(gate, {gate.metric: value}, compared, doubts).status


def test_an_absolute_gate_needs_no_baseline() -> None:
    assert status("loss_rate:0.01", 0.01) == "met"
    assert status("loss_rate:0.01", 0.011) == "broken"
    assert status("throughput:100", 100) == "met"
    assert status("throughput:100", 99) == "broken"
    assert status("loss_rate:0.01", 0.01, former=0.0) == "met"


def test_a_relative_gate_bounds_the_worsening_and_never_an_improvement() -> None:
    assert status("response_p99:10%", 1.1, former=1.0) == "met"
    assert status("response_p99:10%", 1.11, former=1.0) == "broken"
    assert status("response_p99:10%", 0.1, former=1.0) == "met"
    assert status("throughput:10%", 90, former=100.0) == "met"
    assert status("throughput:10%", 89, former=100.0) == "broken"
    assert status("throughput:10%", 900, former=100.0) == "met"
    assert status("loss_rate:10%", 0.0, former=0.0) == "met"
    assert status("loss_rate:10%", 0.001, former=0) == "broken"


def test_a_relative_gate_bounds_the_worsening_of_a_negative_number() -> None:
    """A client that compresses well has an overhead below zero."""
    assert status("overhead:10%", -0.5, former=-0.5) == "met"
    assert status("overhead:10%", -0.46, former=-0.5) == "met"
    assert status("overhead:10%", -0.44, former=-0.5) == "broken"


def test_a_relative_gate_on_a_share_of_nothing_is_unknown() -> None:
    """No number is 10 % below zero, so the gate could never break."""
    gate = parse_gate("throughput:10%")
    judgement = judge_gate(gate, {"throughput": 90.0}, BaselineValue(0.0), [])
    assert judgement == Judgement(
        "unknown", "gate throughput:10%: unknown, the compared run had 0, to which no percentage applies"
    )
    assert status("throughput:10%", 0.0, former=0.0) == "unknown"
    assert status("throughput:10%", 0.0, former=0.001) == "broken"


def test_a_relative_gate_without_a_baseline_is_a_note_unless_the_user_has_named_one() -> None:
    gate, metrics = parse_gate("response_p99:10%"), {"response_p99": 1.0}
    assert judge_gate(gate, metrics, None, []) == Judgement("note", "gate response_p99:10%: no baseline yet")
    assert judge_gate(gate, metrics, BaselineValue(None, "no baseline: so it is"), []) == Judgement(
        "note", "gate response_p99:10%: no baseline: so it is"
    )
    assert judge_gate(gate, metrics, BaselineValue(None, "it is gone", fails=True), []) == Judgement(
        "unknown", "gate response_p99:10%: unknown, it is gone"
    )


def test_difference_of_the_compared_run_is_reported() -> None:
    gate = parse_gate("response_p99:10%")
    judgement = judge_gate(
        gate, {"response_p99": 1.0}, BaselineValue(1.0, "0001_a.json differed in agents (4, here 50)"), []
    )
    assert judgement.line.endswith("of the compared run (0001_a.json differed in agents (4, here 50))")


def test_gate_on_doubtful_or_unknown_value_is_unknown() -> None:
    assert status("loss_rate:0.01", None) == "unknown"
    assert status("loss_rate:0.01", 0.0, doubts=("engine saturated",)) == "unknown"
    assert status("response_p99:10%", None, former=1.0) == "unknown"
    assert status("response_p99:10%", 1.0, former=1.0, doubts=("engine saturated",)) == "unknown"


def test_the_line_of_a_gate_says_value_bound_and_baseline() -> None:
    def line(text: str, value: float | None, former: float | None = None) -> str:
        gate = parse_gate(text)
        compared = None if former is None else BaselineValue(former)
        return judge_gate(gate, {gate.metric: value}, compared, []).line

    assert line("loss_rate:0.01", 0.5) == "gate loss_rate:0.01: 0.5 breaks the bound <= 0.01"
    assert line("throughput:10%", 95, 100) == (
        "gate throughput:10%: 95 bytes/s is within the bound >= 90, 10 % below the 100 of the compared run"
    )
    assert line("chunking:1", 0) == "gate chunking:1: 0 breaks the bound >= 1"
    assert line("chunking:1", 1) == "gate chunking:1: 1 is within the bound >= 1"
    assert line("loss_rate:0.01", None) == "gate loss_rate:0.01: unknown, no value was measured"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("los_rate", "loss_rate"), ("reponse_p99", "response_p99"), ("p99", "response_p99"), ("Loss_Rate", "loss_rate")],
)
def test_a_mistyped_metric_gets_the_nearest_one(word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gate(f"{word}:10%")
    assert str(caught.value) == f"gate '{word}:10%': expected METRIC:BOUND; did you mean {meant}?"
    with pytest.raises(ConfigError) as refused:
        parse_expectations(GOOD.replace("loss_rate", word), "e.toml")
    assert str(refused.value).endswith(f"unknown metric '{word}'; did you mean {meant}?")


@pytest.mark.parametrize("text", ["loss_rate", "response_p99", "loss_rate:"])
def test_a_metric_without_bound_is_asked_for_the_bound(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gate(text)
    assert str(caught.value) == f"gate {text!r}: expected METRIC:BOUND with a bound such as 0.01 or 10%, found ''"


@pytest.mark.parametrize("text", ["los_rate", "Loss_Rate", "loss_rate=0"])
def test_a_mistyped_metric_without_bound_gets_the_nearest_one(text: str) -> None:
    with pytest.raises(UsageError, match="expected METRIC:BOUND; did you mean loss_rate"):
        parse_gate(text)


def test_unknown_metric_error_lists_metrics_and_explains_suites() -> None:
    with pytest.raises(UsageError, match=r"expected METRIC:BOUND with one of loss_rate, .*names its folder$"):
        parse_gate("xyzzy:1")
    with pytest.raises(ConfigError, match=r"unknown key 'metrik'; did you mean metric\?"):
        parse_expectations(GOOD.replace("metric", "metrik"), "e.toml")
