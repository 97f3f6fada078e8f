"""Traces: strict parsing, refusals that name line and column, and rows that are read as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import ConfigError, Verb
from pytest_cloudbench.workload.trace import COLUMNS, VERBS, Replay, Trace, parse_trace
from tests.limits import scale_examples

FEW = settings(deadline=None, max_examples=scale_examples(80))
HEAD = "time,sensor,operation,size\n"
Row = tuple[float, str, Verb, int]


def rows(trace: Trace) -> list[Row]:
    """Return all rows, sensor by sensor."""
    return [
        (trace.time_s[index], name, VERBS[trace.code[index]], trace.size_bytes[index])
        for sensor, name in enumerate(trace.sensors)
        for index in range(trace.first[sensor], trace.first[sensor + 1])
    ]


def test_rows_are_grouped_by_sensor_and_sorted_by_time() -> None:
    trace = parse_trace(HEAD + "5,b,put,10\n1.25,a,get,20\n2,b,list,0\n2,b,put,7\n", "x.csv")
    assert rows(trace) == [
        (2.0, "b", Verb.LIST, 0), (2.0, "b", Verb.PUT, 7), (5.0, "b", Verb.PUT, 10), (1.25, "a", Verb.GET, 20),
    ]  # fmt: skip
    assert (len(trace), trace.begin_s, trace.sensors) == (4, 1.25, ("b", "a"))
    assert (Replay(trace).sensors, Replay(trace).ops_per_sensor) == (2, 3)


def test_numbered_sensors_are_in_the_order_of_their_numbers_and_named_ones_as_they_appear() -> None:
    assert parse_trace(HEAD + "1,10,put,1\n2,9,put,1\n3,0,put,1\n").sensors == ("0", "9", "10")
    assert parse_trace(HEAD + "1,10,put,1\n2,x,put,1\n3,0,put,1\n").sensors == ("10", "x", "0")


def test_other_valid_spellings_are_accepted() -> None:
    text = (
        "\ufeff# made by hand\r\n\r\nSize, operation ,time,SENSOR\r\n"
        '12, Upload ,1e1,"hall, left"\r\n# between\r\n0,DOWNLOAD,.5,"hall, left"\r\n7,put,3.,7'
    )
    assert rows(parse_trace(text)) == [
        (0.5, "hall, left", Verb.GET, 0), (10.0, "hall, left", Verb.PUT, 12), (3.0, "7", Verb.PUT, 7),
    ]  # fmt: skip


@pytest.mark.parametrize("verb", Verb)
def test_every_verb_can_be_in_a_trace(verb: Verb) -> None:
    assert rows(parse_trace(f"{HEAD}0,0,{verb.value},1\n")) == [(0.0, "0", verb, 1)]


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("", "line 1", "the header time,sensor,operation,size"),
        ("# nothing\n\n", "line 1", "the header"),
        ("\n1,2,put,3\n", "line 2", "the header"),
        ("time,sensor,operation\n", "line 1", "the header"),
        ("time,sensor,operation,size,size\n", "line 1", "the header"),
        ("time,sensor,operation,bytes\n", "line 1", "the header"),
        (HEAD, "x.csv", "at least one"),
        (HEAD + "1,2,put\n", "line 2, column 3", "3 values: expected 4"),
        (HEAD + "1,2,put,3,4\n", "line 2, column 5", "5 values: expected 4"),
        (HEAD + "1,2,put,3\n\n#\n-1,2,put,3\n", "line 5, column 1 (time)", "'-1': expected seconds"),
        (HEAD + "nan,2,put,3\n", "line 2, column 1 (time)", "expected seconds"),
        (HEAD + "inf,2,put,3\n", "line 2, column 1 (time)", "expected seconds"),
        (HEAD + "1_0,2,put,3\n", "line 2, column 1 (time)", "expected seconds"),
        (HEAD + "1e400,2,put,3\n", "line 2, column 1 (time)", "expected seconds"),
        (HEAD + "9000000001,2,put,3\n", "line 2, column 1 (time)", "from 0 to 9e+09"),
        (HEAD + "12:30,2,put,3\n", "line 2, column 1 (time)", "expected seconds"),
        (HEAD + "\u0661,2,put,3\n", "line 2, column 1 (time)", "expected seconds"),
        (HEAD + ",2,put,3\n", "line 2, column 1 (time)", "'': expected seconds"),
        (HEAD + "1,,put,3\n", "line 2, column 2 (sensor)", "a number or a name"),
        (HEAD + "1,a\x00b,put,3\n", "line 2", "expected a number or a name|not a line of CSV"),
        (HEAD + "1,2,putt,3\n", "line 2, column 3 (operation)", "'putt': expected one of put, get,"),
        (HEAD + "1,2,put,3.5\n", "line 2, column 4 (size)", "'3.5': expected bytes"),
        (HEAD + "1,2,put,-3\n", "line 2, column 4 (size)", "expected bytes"),
        (HEAD + "1,2,put,5 KB\n", "line 2, column 4 (size)", "expected bytes"),
        (HEAD + "1,2,put,9999999999999999\n", "line 2, column 4 (size)", "at most 15 digits"),
        ("size,time,sensor,operation\nx,1,2,put\n", "line 2, column 1 (size)", "'x': expected bytes"),
        (HEAD + '1,"2,put,3\n', "line 2", "not a line of CSV"),
        (HEAD + '1,"2"x,put,3\n', "line 2", "not a line of CSV"),
        (HEAD + "1,2,put,3\r4,5,put,6\n", "line 2", ""),
    ],
)
def test_a_refusal_names_line_and_column(text: str, where: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace(text, "x.csv")
    message = str(caught.value)
    assert message.startswith("x.csv: ")
    assert where in message
    assert any(alternative in message for alternative in expected.split("|"))


LINE = st.text(st.sampled_from("0123456789.,eE-+#\"' \r\tputgeliszr_\x00\u2028\u0661"), max_size=25)


@FEW
@given(st.one_of(st.text(), st.lists(LINE, max_size=6).map(lambda lines: HEAD + "\n".join(lines))))
def test_any_text_is_a_trace_or_a_refusal(text: str) -> None:
    try:
        trace = parse_trace(text, "x")
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = "x: "
        assert len(trace) == len(rows(trace)) > 0
    assert refusal.startswith("x: ")


SENSORS = st.one_of(st.integers(0, 99).map(str), st.sampled_from(["hall", "roof, left", 'a "b"', "\u00e4"]))
MILLISECONDS = st.integers(0, 10**9).map(lambda time: time / 1000)
ROWS = st.lists(
    st.tuples(MILLISECONDS, SENSORS, st.sampled_from(Verb), st.integers(0, 10**15 - 1)),
    min_size=1, max_size=40,
)  # fmt: skip


@FEW
@given(written=ROWS, order=st.permutations(COLUMNS))
def test_parsing_returns_the_written_rows(written: list[Row], order: list[str]) -> None:
    def cells(row: Row) -> dict[str, str]:
        name = '"' + row[1].replace('"', '""') + '"'
        return {"time": repr(row[0]), "sensor": name, "operation": row[2].value, "size": str(row[3])}

    lines = [",".join(order), *(",".join(cells(row)[column] for column in order) for row in written)]
    trace = parse_trace("\n".join(lines))
    for name in {row[1] for row in written}:
        expected = sorted((row for row in written if row[1] == name), key=lambda row: row[0])
        assert [row for row in rows(trace) if row[1] == name] == expected
    assert len(trace) == len(written)


def test_the_repr_is_a_short_summary() -> None:
    trace = parse_trace(HEAD + "0,0,put,1\n" * 5000, "x.csv")
    assert repr(Replay(trace)).startswith("Replay(trace=<x.csv, 1 sensors, 5000 operations, sha256 ")
    assert len(repr(Replay(trace))) < 150
    assert trace.sha256 != parse_trace(HEAD + "0,0,put,2\n", "x.csv").sha256
