"""The table on the terminal, line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_cloudbench import Suite, ThinkTime
from pytest_cloudbench.report.table import render, render_result

TEST = "suites/iot/test_iot.py::test_worst_case"


@dataclass(frozen=True)
class Finding:
    info: Mapping[str, Any]
    nodeid: str = f"{TEST}[50-1s]"
    provider: str = "emulated:one"
    params: Mapping[str, Any] = field(default_factory=lambda: {"interval_s": 1})
    columns: Sequence[str] = ()


def info(**changes: Any) -> dict[str, Any]:
    return {
        "agents": 2, "loop": "open", "emulated": True, "time_scale": 1.0, "sensors": 50, "published": {},
        "files": 1500, "lost": 12, "loss_rate": 0.008, "throttled": 9, "failed": 2, "corrupt": 1, "silently_lost": 1,
        "response_p50": 0.0123, "response_p99": 1.9, "lateness_p99": 0.0004, "digest_checked": True,
        "doubts": [], "notes": [], "expectations": ["no expectation"],
        "expectations_unmet": [], **changes,
    }  # fmt: skip


def lines(*findings: Finding, width: int = 200) -> list[str]:
    return [line.rstrip() for line in render(findings, width)]


def test_title_counts_the_hosts_that_carried_agents() -> None:
    hosts = [{"name": "oslo", "agents": 2}, {"name": "lima", "agents": 1}, {"name": "gone", "agents": 0}, "stranger"]
    assert "emulated:one, 3 agents on 2 hosts, open loop" in lines(Finding(info(agents=3, hosts=hosts)))[1]
    assert "emulated:one, 2 agents on 1 host, open loop" in lines(Finding(info(hosts=hosts[:1])))[1]


def test_table_of_one_experiment() -> None:
    assert lines(Finding(info())) == [
        "",
        "test_worst_case  emulated:one, 2 agents, open loop, emulated: measures the client and the loopback",
        "sensors  interval s  files  lost  loss rate  throttled  failed  corrupt  silent  p50 ms  p99 ms  late p99",
        "---------------------------------------------------------------------------------------------------------",
        "     50           1  1,500    12     0.80 %          9       2        1       1    12.3   1,900       0.4",
        "",
    ]


@pytest.mark.parametrize(
    ("changes", "width", "line"),
    [
        ({}, 85, "test_worst_case[50-1s]: lost 0.80 %, failed 2, corrupt 1, silent 1, p50 12.3 ms"),
        ({}, 40, "test_worst_case[50-1s]: lost 0.80 %"),
        ({}, 30, "test_worst_ca...: lost 0.80 %"),
        ({"verdict": "broken"}, 50, "test_worst_case[50-1s]: broken, lost 0.80 %"),
        ({"verdict": "inconclusive"}, 50, "test_worst_case[50-1s]: inconclusive, lost 0.80 %"),
        (
            {"failed": 0, "corrupt": 0, "silently_lost": None, "loss_rate": 0.0, "published": {"loss_rate": 0.772}},
            120,
            "test_worst_case[50-1s]: lost 0.00 %, published 77.20 %, p50 12.3 ms, p99 1,900 ms, "
            "throttled 9, late p99 0.4",
        ),
    ],
)
def test_result_is_one_line_cut_to_the_width(changes: dict[str, Any], width: int, line: str) -> None:
    assert render_result(Finding(info(**changes)), width) == line
    assert len(line) <= width


@pytest.mark.parametrize(("interval_s", "is_shown"), [(0, True), (0.0, True), (0.5, False), (1e-9, False)])
def test_a_loop_without_pauses_shows_its_rate(interval_s: float, *, is_shown: bool) -> None:
    finding = Finding(info(loop="closed", arrival=repr(ThinkTime(interval_s)), throughput=2e6, ops_per_s=400.0))
    assert ("MB/s  ops/s" in lines(finding)[2]) is is_shown


def test_result_has_all_that_a_conclusion_names_but_its_parameters() -> None:
    finding = Finding(info(knee_threads=20, files=None), columns=("knee_threads",))
    assert render_result(finding, 80) == "test_worst_case[50-1s]: knee threads 20"


def test_a_name_is_whole_where_all_values_fit_beside_it() -> None:
    finding = Finding(
        info(knee_threads=20, files=None), f"{TEST}[50-1s-emulated:gdrive]#Chunking", columns=("knee_threads",)
    )
    assert render_result(finding, 76) == "test_worst_case[50-1s-emulated:gdrive]#Chunking: knee threads 20"


def test_result_shows_the_unit_of_a_title_once() -> None:
    suite = Suite("smallfile", columns={"response_p50": "small put, ms"}).about("test_worst_case")
    finding = Finding(info(files=None, suite=suite.plain()), columns=("response_p50",))
    assert render_result(finding, 80) == "test_worst_case[50-1s]: small put 12.3 ms"


PUTS = {"ops": 1600, "throttled_rate": 0.25, "failed_rate": 0.005, "corrupt_rate": 0.0, "response_p50": 0.0123,
        "response_p95": 0.5, "response_p99": 1.9}  # fmt: skip


def test_kinds_of_operations_of_a_mixed_load_have_a_table() -> None:
    output = lines(Finding(info(by_operation={"put": PUTS, "get": {"ops": 3, "response_p50": None}})))
    assert output[5:10] == [
        "",
        "operation    ops  throttled  failed  corrupt  p50 ms  p95 ms  p99 ms",
        "--------------------------------------------------------------------",
        "      put  1,600        400       8        0    12.3     500   1,900",
        "      get      3          -       -        -       -       -       -",
    ]


def test_kinds_of_operations_of_several_mixed_loads_name_their_experiments() -> None:
    first = Finding(info(by_operation={"put": PUTS}), nodeid=f"{TEST}[9-1s]")
    output = lines(first, Finding(info(by_operation={"put": PUTS})), Finding(info(), nodeid=f"{TEST}[7-1s]"))
    head = next(number for number, line in enumerate(output) if line.startswith("experiment  operation"))
    assert [line.split()[:2] for line in output[head + 2 : head + 5]] == [["9-1s", "put"], ["50-1s", "put"], []]


@pytest.mark.parametrize("stored", [None, [], {"put": 1}, "put"])
def test_unknown_forms_of_operations_have_no_table(stored: object) -> None:
    assert lines(Finding(info(by_operation=stored))) == lines(Finding(info()))


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    names = ["files", "lost", "loss_rate", "throttled", "failed", "corrupt", "silently_lost", "sensors"]
    times = ["response_p50", "response_p99", "lateness_p99"]
    nothing = Finding(info(**dict.fromkeys([*names, *times], None)), params={})
    zero = Finding(info(**dict.fromkeys([*names, *times], 0)), params={"interval_s": 0})
    assert lines(nothing)[4].split() == ["-"] * 11, "an interval that no row has gets no column"
    assert lines(zero)[4].replace("0.00 %", "0").replace("0.0", "0").split() == ["0"] * 12


def columns(*findings: Finding) -> list[dict[str, str]]:
    """Return the rows of the only table, by column title. Two spaces separate columns."""
    title, _, *body = (re.split(" {2,}", line.strip()) for line in lines(*findings)[2 : 4 + len(findings)])
    return [dict(zip(title, row, strict=True)) for row in body]


def test_throttling_is_separate_from_failure() -> None:
    (row,) = columns(Finding(info(lost=9, throttled=9, failed=0, corrupt=0, silently_lost=0)))
    assert {name: row[name] for name in ("lost", "throttled", "failed", "corrupt", "silent")} == {
        "lost": "9", "throttled": "9", "failed": "0", "corrupt": "0", "silent": "0",
    }  # fmt: skip


def test_throughput_of_small_files_is_not_zero() -> None:
    rates = (None, 999.0, 1_234_567.0, 1.25e9)
    loads = [Finding(info(threads=4, throughput=rate), f"{TEST}[{rate}]") for rate in rates]
    assert [row["MB/s"] for row in columns(*loads)] == ["-", "0.000999", "1.23", "1,250"]


def test_each_test_has_its_own_table() -> None:
    text = lines(
        Finding(info()), Finding(info(files=7), nodeid=f"{TEST}[9-1s]"),
        Finding(info(), nodeid=f"{TEST}[9-1s]", provider="folder:/x"),
        Finding(info(), nodeid="suites/iot/test_iot.py::test_average_case[9-1s]"),
    )  # fmt: skip
    titles = [line.partition(",")[0] for line in text if "loop" in line]
    assert titles == ["test_worst_case  emulated:one", "test_worst_case  folder:/x", "test_average_case  emulated:one"]
    assert [line.split()[2] for line in text[4:6]] == ["1,500", "7"]


def test_published_loss_rate_has_a_column() -> None:
    with_figure = Finding(info(published={"loss_rate": 0.375, "source": "thesis"}))
    without = Finding(info(), nodeid=f"{TEST}[9-1s]")
    assert "published" not in "".join(lines(without))
    assert [row["published"] for row in columns(with_figure, without)] == ["37.50 %", "-"]


def test_differing_parameters_are_columns() -> None:
    both = [
        Finding(info(), f"{TEST}[{size}-1s]", params={"sensors": 50, "size_bytes": size, "same": 1, "interval_s": 1})
        for size in (10, 2000)
    ]
    title, _, *rows = lines(*both)[2:6]
    assert title.split()[:4] == ["size", "sensors", "interval", "s"]
    assert [row.split()[:3] for row in rows] == [["10", "B", "50"], ["2", "kB", "50"]]
    assert "same" not in title


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (f"{TEST}[50-1s]#upload-2", "50-1s upload-2"),
        (f"{TEST}[batch#1-1s]", "batch#1-1s"),
        (f"{TEST}[batch#1-1s]#upload", "batch#1-1s upload"),
        (f"{TEST}#upload", "upload"),
    ],
)
def test_remarks_name_parameters_and_label(name: str, label: str) -> None:
    assert f"! {label}: gw1 was lost" in lines(Finding(info(doubts=["gw1 was lost"]), name))


def test_hash_signs_in_parameters_do_not_separate_a_table() -> None:
    findings = [Finding(info(), f"{TEST}[{size}]#upload", params={"size": size}) for size in ("a#1", "b::c")]
    assert sum(TEST.rpartition("::")[2] in line for line in lines(*findings)) == 1


def test_emulated_result_is_labelled() -> None:
    assert "emulated: measures the client and the loopback" in lines(Finding(info()))[1]
    assert "emulated" not in lines(Finding(info(emulated=False), provider="folder:/x"))[1]


def test_time_scale_is_labelled() -> None:
    assert lines(Finding(info(time_scale=2.0)))[1].endswith("time scale 2: times are not comparable")
    assert "time scale" not in lines(Finding(info()))[1]


def test_doubts_notes_and_expectations_are_not_repeated() -> None:
    doubtful = info(
        doubts=["engine saturated (lateness p99 200 ms is over 100 ms)", "gw1 was lost"],
        notes=["the records continue in /tmp/x"],
        expectations=["loss_rate <= 0.1: broken", "response_p99 <= 2: met"],
        expectations_unmet=["loss_rate <= 0.1: broken"],
        published={"loss_rate": 0.2, "source": "a paper, Table 1, 2014"},
    )
    again = Finding(info(notes=["the records continue in /tmp/x"]), nodeid=f"{TEST}[9-1s]")
    assert lines(Finding(doubtful), again)[6:] == [
        "! 50-1s: engine saturated (lateness p99 200 ms is over 100 ms)",
        "! 50-1s: gw1 was lost",
        "note: the records continue in /tmp/x",
        "  50-1s: loss_rate <= 0.1: broken",
        "  50-1s: loss rate: published 20.00 %, measured 0.80 %: -19.20 points, allowed: no bound",
        "  published: a paper, Table 1, 2014",
        "  1 expectation met",
        "  no expectation for the others",
        "",
    ]


def test_provider_without_digests_has_a_note() -> None:
    note = "note: sizes were compared, not content: this provider lists no digest"
    assert note in lines(Finding(info(digest_checked=False)))
    assert note not in lines(Finding(info()))


@pytest.mark.parametrize("published", [{}, {"loss_rate": 0.5}])
def test_big_run_fits_into_120_columns(published: dict[str, Any]) -> None:
    """A table whose lines the terminal breaks cannot be read."""
    finding = Finding(info(files=100_000, sensors=10_000, lost=99_999, throttled=99_999, published=published))
    assert max(map(len, lines(finding, width=120)[2:5])) <= 120
    flawless = Finding(info(files=100_000, sensors=10_000, failed=0, corrupt=0, silently_lost=0, published=published))
    narrow = lines(flawless, width=80)
    assert any(line.startswith("  columns omitted: silent, corrupt") for line in narrow), narrow
    assert max(map(len, narrow[2:5])) <= 80


@pytest.mark.parametrize(
    ("shares", "remark"),
    [
        ((0.004,), "at most 0.40 %"),
        ((0.0,), "at most 0.00 %"),
        ((0.004, 0.05), "at most 5.00 %"),
        ((0.004, None), "at most 0.40 % or unknown"),
        ((None, None), "unknown in all rows"),
        ((0.051,), ""),
        ((0.0, 0.9), ""),
    ],
)
def test_negligible_starvation_is_omitted(shares: tuple[float | None, ...], remark: str) -> None:
    findings = [Finding(info(starved_share=share), f"{TEST}[{n}-1s]") for n, share in enumerate(shares)]
    wide, narrow = lines(*findings), lines(*findings, width=100)
    assert wide[2].endswith("late p99  starved")
    assert not any("omitted" in line for line in wide)
    omitted = [line for line in narrow if line.startswith("  columns omitted: ")]
    assert any("starved" in line.split() for line in narrow if line not in omitted) is (remark == "")
    assert omitted == ([f"  columns omitted: starved ({remark})"] if remark else [])


def test_starved_column_with_other_content_is_shown() -> None:
    finding = Finding(
        info(starved="now and then"), columns=("starved", *(f"a_long_name_of_column_{n}" for n in range(9)))
    )
    assert "now and then" in "\n".join(lines(finding, width=60))


def test_starvation_is_omitted_before_faults() -> None:
    finding = info(starved_share=0.01, silently_lost=0, corrupt=0, failed=0)
    for width in range(40, 120):
        for line in lines(Finding(finding), width=width):
            if line.startswith("  columns omitted: ") and "silent" in line:
                assert line.startswith("  columns omitted: starved (at most 1.00 %); silent")


def test_omitted_columns_are_listed_with_their_content() -> None:
    fields = {"files": 100_000, "sensors": 10_000, "published": {"source": "a paper"}}
    findings = [Finding(info(**fields, silently_lost=0, corrupt=None, failed=failed)) for failed in (0, None)]
    line = "  columns omitted: silent (0 in all rows); corrupt, published (unknown in all rows); failed (0 or unknown)"
    assert line in lines(*findings, width=40)


@pytest.mark.parametrize("key", ["files", "threads", "sensors", "interval_s", "lost", "silently_lost"])
def test_text_as_count_is_shown(key: str) -> None:
    """A parameter of a test may have any value."""
    finding = Finding(info(**{"files": 1, "lost": 0, "silently_lost": 0, key: "many"}), params={key: "many"})
    assert any("many" in line for line in lines(finding))


def test_no_findings_have_no_table() -> None:
    assert "".join(lines()) == ""


def test_conclusion_columns_have_units() -> None:
    columns = ("knee_threads", "best_total", "mean_s", "noise", "bandwidth", "market_share", "off", "nothing_s")
    extra = {
        "knee_threads": 25, "best_total": 1.5, "mean_s": 0.0123, "noise": 0.031, "bandwidth": 2.5e6,
        "market_share": "much", "off": True, "nothing_s": None,
    }  # fmt: skip
    _, title, head, _, row, *_ = lines(Finding(info(**extra), params={"size": 7}, columns=columns))
    assert title.startswith("test_worst_case  emulated:one")
    assert re.split(r"  +", head.strip()) == [
        "size", "knee threads", "best total ms", "mean ms", "noise", "bandwidth MB/s", "market share", "off",
        "nothing ms",
    ]  # fmt: skip
    assert re.split(r"  +", row.strip()) == ["7", "25", "1,500", "12.3", "3.10 %", "2.5", "much", "yes", "-"]


def test_conclusion_without_columns_shows_only_measured_ones() -> None:
    partial = {
        key: value for key, value in info(ops=40, knee_threads=4).items() if "_p" not in key and "los" not in key
    }
    del partial["files"]
    assert list(columns(Finding(partial))[0]) == ["sensors", "interval s", "throttled", "failed", "corrupt"]
    assert columns(Finding(partial), Finding(info()))[0]["p50 ms"] == "-", "what another row has is a dash here"


def test_wide_title_is_wrapped() -> None:
    assert lines(Finding(info()), width=80)[1:3] == [
        "test_worst_case  emulated:one, 2 agents, open loop, emulated: measures the",
        "  client and the loopback",
    ]


def test_provider_messages_are_wrapped_below_the_table() -> None:
    details = {"throttled": {"count": 62, "said": [{"detail": "429 too_many_write_operations", "count": 62}]}}
    assert "  50-1s: throttled 62 x: 429 too_many_write_operations" in lines(Finding(info(error_details=details)))
    texts = [{"detail": "503 " + "word " * 38, "count": 3}, {"detail": "500", "count": 1}]
    long = {"server": {"count": 4, "said": texts}}
    output = lines(Finding(info(error_details=long)), width=60)
    words = output[output.index(next(line for line in output if "server 4 x, 3 of them: 503" in line)) :]
    assert words[1].startswith("    word word")
    assert max(map(len, output)) <= 60
    assert "server" not in "\n".join(render([Finding(info(error_details=long))], 60, -1))


def test_equal_errors_of_two_experiments_are_shown() -> None:
    details = {"throttled": {"count": 2, "said": [{"detail": "429 " + "wait " * 30, "count": 2}]}}
    members = [Finding(info(error_details=details), nodeid=f"{TEST}[{name}]") for name in ("a", "b")]
    both, one = (
        [line for line in lines(*findings, width=80) if "wait wait" in line] for findings in (members, members[:1])
    )
    assert len(both) == 2 * len(one) == 6, "equal lines of two remarks are not taken for one"


def test_files_listed_twice_have_a_column() -> None:
    none, some = Finding(info(listed_twice=0)), Finding(info(listed_twice=96), nodeid=f"{TEST}[50-2s]")
    assert [row["twice"] for row in columns(none, some)] == ["0", "96"]
    for finding in (none, Finding(info(listed_twice=None)), Finding(info(listed_twice=96, operation="get"))):
        assert "twice" not in columns(finding)[0]


def test_p95_is_shown_if_it_fits() -> None:
    finding = Finding(info(response_p95=0.015))
    narrow, wide = ("\n".join(render([finding], width)) for width in (80, 200))
    assert "p99 ms" in narrow
    assert "p95 ms" not in narrow
    assert "p95 ms" in wide
