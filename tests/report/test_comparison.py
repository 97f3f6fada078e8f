"""A table of several providers, line by line and at the usual widths of terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_cloudbench.report.comparison import (
    compared_experiments,
    emphasize_best,
    rank_hosts,
    rank_providers,
    render_comparison,
    render_hosts,
)

TEST = "suites/iot/test_iot.py::test_worst_case"


@dataclass(frozen=True)
class Finding:
    provider: str
    info: Mapping[str, Any]
    columns: Sequence[str] = ()
    experiment: str = f"{TEST}[50-1s]"
    nodeid: str = ""
    spread: Mapping[str, Sequence[float]] = field(default_factory=dict)


def make_finding(provider: str, p50_s: float | None, **changes: Any) -> Finding:
    info = {
        "emulated": False, "time_scale": 1.0, "operation": "put", "threads": None, "ops": 500, "ok": 500, "lost": 0,
        "loss_rate": 0.0, "ok_rate": 1.0, "throttled": 0, "failed": 0, "corrupt": 0, "response_p50": p50_s,
        "response_p99": None, "lateness_p50": 0.0, "doubts": [], "notes": [], **changes,
    }  # fmt: skip
    spread = {
        "loss_rate": [0.0] * 10,
        "response_p50": [p50_s * (1 + step / 100) for step in range(10)] if p50_s else [],
    }
    return Finding(provider, info, spread=spread)


def rows(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the cells of each provider's row."""
    return {line.split()[0]: line.replace(" %", "%").split()[1:] for line in lines if line.startswith("  ")}


def test_best_value_is_marked() -> None:
    assert render_comparison([make_finding("folder:/x", 0.3), make_finding("dropbox", 0.1)], 80) == [
        "",
        "provider     loss rate   p50 ms",
        "-" * 31,
        "test_worst_case[50-1s]",
        "  folder:/x     0.00 %      300",
        "  dropbox       0.00 %      100*",
        "  no difference found: loss rate",
        "",
        "* best by 25 % or more (five runs: 10 %, rates: 1 point)   ~ closer to the best",
        "  ? has doubts, not compared",
        "",
    ]


def test_close_values_are_not_marked() -> None:
    lines = render_comparison([make_finding("folder:/x", 0.1), make_finding("dropbox", 0.11)], 80)
    assert "  no difference found: loss rate" in lines
    assert "  differs by less than 25 %: p50 ms" in lines
    assert not [line for line in lines if "*" in line or "~" in line]


def test_doubted_provider_is_not_compared() -> None:
    findings = [make_finding("a", 0.01, doubts=["gw1 was lost"]), make_finding("b", 0.1), make_finding("c", 0.4)]
    cells = rows(render_comparison(findings, 80))
    assert [cells[name][1] for name in ("a?", "b", "c")] == ["10", "100*", "400"]
    alone = render_comparison(findings[:2], 80)
    assert not [line for line in alone if line.endswith("*")], "a single value is not a comparison"
    assert "  not judged: loss rate, p50 ms (all others have doubts)" in alone


def test_provider_with_fewer_successes_is_not_quicker() -> None:
    lines = render_comparison(
        [make_finding("a", 0.01, ok_rate=0.5, lost=250, ok=250, loss_rate=0.5), make_finding("b", 0.1)], 80
    )
    assert "  not judged: p50 ms (the others completed fewer operations)" in lines


def test_scaled_times_are_not_compared() -> None:
    lines = render_comparison([make_finding("a", 0.01, time_scale=10.0), make_finding("b", 0.1, time_scale=10.0)], 80)
    assert "  not judged: p50 ms (the time scale distorts times)" in lines


def test_mix_of_emulated_and_real_has_a_note() -> None:
    mixed = render_comparison([make_finding("emulated:ideal", 0.1, emulated=True), make_finding("dropbox", 0.4)], 200)
    assert mixed[-2] == (
        "note: emulated (client and loopback): emulated:ideal; not emulated: dropbox. "
        "A difference between these kinds is not one between services"
    )
    emulated = render_comparison([make_finding(name, 0.1, emulated=True) for name in ("emulated:a", "emulated:b")], 200)
    assert emulated[-2] == "note: all are emulated: this compares profiles, clients and loopback, not services"


def test_unknown_emulation_is_named() -> None:
    kinds = {"dropbox": False, "box": None, "gdrive": "elsewhere"}
    lines = render_comparison([make_finding(name, 0.1, emulated=kind) for name, kind in kinds.items()], 200)
    assert lines[-2] == (
        "note: not emulated: dropbox; unknown whether emulated: box, gdrive. "
        "A difference between these kinds is not one between services"
    )
    unknown = render_comparison([make_finding(name, 0.1, emulated=None) for name in "ab"], 200)
    assert not [line for line in unknown if line.startswith("note: ")]


def test_single_provider_has_no_comparison() -> None:
    assert render_comparison([make_finding("dropbox", 0.1)], 80) == []
    assert render_comparison([], 80) == []
    other = Finding("folder:/x", make_finding("x", 0.1).info, experiment="other")
    assert render_comparison([make_finding("dropbox", 0.1), other], 80) == []
    assert compared_experiments([make_finding("a", 0.1), make_finding("b", 0.1), other]) == {f"{TEST}[50-1s]"}


def test_repeated_runs_give_the_spread() -> None:
    """Medians of the runs are compared, and a tenth is then a difference."""
    findings = [
        make_finding(name, p50_s + step / 1000) for step in range(5) for name, p50_s in (("a", 0.1), ("b", 0.12))
    ]
    assert rows(render_comparison(findings, 80))["a"] == ["0.00%", "102*"]
    assert rows(render_comparison(findings[:8], 80))["a"] == ["0.00%", "102"], "four are too few"


def test_repeats_of_a_bench_file_give_the_spread() -> None:
    labels = ["upload", *(f"upload-{number}" for number in range(2, 6))]
    findings = [
        replace(make_finding(name, p50_s), experiment=f"{TEST}#{label}")
        for label in labels
        for name, p50_s in (("a", 0.1), ("b", 0.12))
    ]
    lines = render_comparison(findings, 80)
    assert rows(lines)["a"] == ["0.00%", "100*"]
    assert lines.count("test_worst_case upload") == 1
    assert compared_experiments(findings) == {f"{TEST}#{label}" for label in labels}


def test_parameters_keep_their_hash_signs() -> None:
    names = [f"{TEST}[a#1]#upload", f"{TEST}[a]#1]", f"{TEST}[s3://a::b]"]
    findings = [replace(make_finding(provider, 0.1), experiment=name) for name in names for provider in ("a", "b")]
    shown = [line for line in render_comparison(findings, 80) if line.startswith("test_")]
    assert shown == ["test_worst_case[a#1] upload", "test_worst_case[a]#1]", "test_worst_case[s3://a::b]"]


def test_numbers_in_labels_of_a_test_are_no_repeats() -> None:
    """A page finds each experiment by its name."""
    names = [f"{TEST}#size-1000", f"{TEST}#size-100000"]
    findings = [replace(make_finding(provider, 0.1), experiment=name) for name in names for provider in ("a", "b")]
    lines = render_comparison(findings, 80)
    assert [line for line in lines if "size" in line] == ["test_worst_case size-1000", "test_worst_case size-100000"]
    assert [standing.experiment for standing in rank_providers(findings)[0]] == names
    by_hosts = [replace(by_host({"oslo": 0.1, "lima": 0.3}), experiment=name) for name in names]
    assert [standing.experiment for standing in rank_hosts(by_hosts)] == names


def test_every_repeat_counts_for_the_number_of_successes() -> None:
    """A median of successes excludes a provider, and errors are those of all repeats."""
    bad = {"ok": 250, "lost": 250, "ok_rate": 0.5, "loss_rate": 0.5, "failed": 250}
    findings = [
        replace(make_finding(name, p50_s, **changes), experiment=f"{TEST}#upload{ending}")
        for ending, changes in (("", bad), ("-2", bad), ("-3", {}))
        for name, p50_s, changes in (("a", 0.01, changes), ("b", 0.1, {}))
    ]
    lines = render_comparison(findings, 80)
    assert rows(lines)["a"] == ["50.00%", "500", "10"]
    assert rows(lines)["b"] == ["0.00%", "0", "100"]
    assert "  not judged: p50 ms (the others completed fewer operations)" in lines


def test_conclusion_of_a_loss_rate_alone_is_compared() -> None:
    findings = [make_finding(name, None, ok_rate=None, loss_rate=share) for name, share in (("a", 0.0), ("b", 0.5))]
    assert rows(render_comparison(findings, 80))["b"] == ["50.00%"]


def test_conclusion_shows_its_metrics() -> None:
    def make_conclusion(provider: str, ready_s: float) -> Finding:
        info = {**make_finding(provider, 0.1).info, "readiness_p50": ready_s, "files": 5, "knee_threads": 5}
        columns = ("files", "readiness_p50", "knee_threads")
        return Finding(provider, info, columns, f"{TEST}[1MB]#knee", spread={"readiness_p50": [ready_s] * 5})

    lines = render_comparison([make_conclusion("a", 0.2), make_conclusion("b", 0.6)], 80)
    assert lines[1].split("  ")[0] == "provider"
    assert rows(lines)["a"] == ["200*", "5"]
    assert "test_worst_case[1MB] knee" in lines
    assert "  not judged: knee threads (one value each)" in lines
    few = [
        replace(make_conclusion(name, ready_s), spread={"readiness_p50": [1.0] * 4})
        for name, ready_s in (("a", 1), ("b", 2))
    ]
    assert "  not judged: readiness p50 ms (too few repeats: 25 operations, or 5 rounds or" in render_comparison(
        few, 80
    )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_six_providers_fit_the_terminal(width: int) -> None:
    specs = [f"folder:/mnt/{'long/' * number}storage" for number in range(7)] + ["emulated:dropbox?profile=ideal"]
    wide = {"response_p99": 123.456, "throughput": 1e9, "threads": 4, "requests_per_op": 1.0, "throttled": 100_000}
    lines = render_comparison([make_finding(spec, 0.1 * number, **wide) for number, spec in enumerate(specs, 1)], width)
    assert max(map(len, lines)) <= width
    names = [line.split()[0] for line in lines if line.startswith("  ") and ":" in line.split()[0]]
    assert len(set(names)) == len(specs), "short names stay as they are"


@pytest.mark.parametrize(
    ("specs", "shown"),
    [
        (
            [f"emulated:{name}?profile=ideal" for name in ("onedrive", "gdrive", "box")],
            ["emulated:onedrive?prof..", "emulated:gdrive?profil..", "emulated:box?profile=i.."],
        ),
        (
            [f"s3://bucket?endpoint=http://{name}.example.org:9000" for name in ("old", "new")],
            ["s3:..ld.example.org:9000", "s3:..ew.example.org:9000"],
        ),
    ],
)
def test_long_names_are_cut_at_their_equal_parts(specs: list[str], shown: list[str]) -> None:
    lines = render_comparison([make_finding(spec, 0.1 * number) for number, spec in enumerate(specs, 1)], 80)
    assert [line.split()[0] for line in lines if line.startswith("  ") and ":" in line.split()[0]] == shown


def test_only_best_values_are_emphasized() -> None:
    def tone(text: str) -> str:
        return f"<{text}>"

    assert emphasize_best("  a    0.00 %*     12.5*    3 ", tone) == "  a    <0.00 %*>     <12.5*>    3 "
    assert emphasize_best("* best, by more than noise", tone) == "* best, by more than noise"


def test_experiments_without_values_have_no_table() -> None:
    bare = {"emulated": False, "doubts": [], "notes": [], "operation": None}
    assert render_comparison([Finding("one", bare), Finding("other", bare)], 80) == []


def test_quoted_texts_are_not_compared() -> None:
    extra = "SkyDrive about 150 kB"
    findings = [
        replace(make_finding(name, None, login_kb=kb, imc_2013=extra, published={"login_traffic": extra}),
                columns=("login_kb", "imc_2013"))
        for name, kb in (("a", 2.9), ("b", 3.1))
    ]  # fmt: skip
    table = ["provider  login kb", "-" * 18, "test_worst_case[50-1s]", "  a            2.9", "  b            3.1"]
    assert [line.rstrip() for line in render_comparison(findings, 80)[1:6]] == table, (
        "short names leave room for the head"
    )


def test_long_texts_are_wrapped_and_empty_columns_left_out() -> None:
    reason = "it sends its requests to a server whose certificate was revoked by CRL or by OCSP, and asks neither"
    findings = [
        replace(
            make_finding(name, None, answer=answer, how=how, advertised="-"), columns=("answer", "how", "advertised")
        )
        for name, answer, how in (("a", "no", reason), ("b", "unknown", "it makes no connections"))
    ]
    lines = [line.rstrip() for line in render_comparison(findings, 60)]
    assert max(map(len, lines)) <= 60
    assert "advertised" not in "\n".join(lines)
    table = lines[next(number for number, line in enumerate(lines) if line.endswith("how")) + 3 :]
    second = next(number for number, line in enumerate(table) if line.startswith("  b "))
    assert second > 1
    assert " ".join(line[10:].strip() for line in table[:second]) == reason
    assert table[second].split() == ["b", *"it makes no connections".split()]


def by_host(p50_s: Mapping[str, float], agents: Sequence[int] = (2, 2), provider: str = "dropbox") -> Finding:
    """Return a finding that several hosts measured, with their medians."""
    hosts = {}
    for name, value in p50_s.items():
        finding = make_finding(provider, value, throughput=1e6 * value)
        spread = {**finding.spread, "throughput": [1e6 * value] * 10}
        hosts[name] = {key: finding.info[key] for key in ("ok_rate", "response_p50", "throughput")} | {"spread": spread}
    rows = [{"name": name, "agents": count} for name, count in zip(p50_s, agents, strict=True)]
    return make_finding(provider, 0.2, threads=4, throughput=9e6, hosts=rows, by_host=hosts)


def test_best_host_is_marked_and_all_hosts_are_not_compared_with_it() -> None:
    assert render_hosts([by_host({"oslo": 0.1, "lima": 0.3})], 80)[:7] == [
        "",
        "host               ok   p50 ms   MB/s",
        "-" * 37,
        "test_worst_case[50-1s]",
        "  oslo       100.00 %      100*   0.1",
        "  lima       100.00 %      300    0.3*",
        "  all hosts  100.00 %      200      9",
    ]


def test_equal_hosts_are_not_marked() -> None:
    lines = render_hosts([by_host({"oslo": 0.1, "lima": 0.1})], 80)
    assert rows(lines)["oslo"] == ["100.00%", "100", "0.1"]
    assert not any("*" in line for line in lines)


def test_hosts_with_different_numbers_of_agents_are_not_compared_by_rates() -> None:
    lines = render_hosts([by_host({"oslo": 0.1, "lima": 0.3}, agents=(1, 3))], 80)
    assert rows(lines)["lima"][-1] == "0.3"
    assert "  not judged: MB/s (hosts have different numbers of agents)" in lines


def test_hosts_that_reach_the_provider_by_another_way_are_not_compared_by_times() -> None:
    finding = by_host({"oslo": 0.1, "lima": 0.3})
    finding = replace(finding, info={**finding.info, "through_controller": ["gw1"]})
    lines = render_hosts([finding], 100)
    assert rows(lines)["oslo"][1] == "100"
    assert "  not judged: p50 ms, MB/s (times include the way through the controller's connections)" in lines


def test_experiment_on_one_machine_has_no_table_of_hosts() -> None:
    assert render_hosts([make_finding("dropbox", 0.1)], 80) == []


def test_best_provider_is_marked_over_all_hosts_and_from_each() -> None:
    findings = [by_host({"oslo": 0.1, "lima": 0.5}), by_host({"oslo": 0.3, "lima": 0.2}, provider="box")]
    lines = render_comparison(findings, 80)
    from_oslo, from_lima = (lines.index(f"test_worst_case[50-1s] from {host}") for host in ("oslo", "lima"))
    assert rows(lines[from_oslo : from_oslo + 3])["dropbox"][1] == "100*"
    assert rows(lines[from_lima : from_lima + 3])["box"][1] == "200*"
    standings, _ = rank_providers(findings)
    assert [standing.host for standing in standings] == ["", "oslo", "lima"]
    hosts = render_hosts(findings, 80)
    assert {"test_worst_case[50-1s] on dropbox", "test_worst_case[50-1s] on box"} <= {*hosts}


@pytest.mark.parametrize("stored", [3, {"oslo": 3}, {"oslo": {"response_p50": "x", "spread": 4}, "lima": None}])
def test_hosts_of_strangers_do_no_harm(stored: object) -> None:
    finding = make_finding("dropbox", 0.1, hosts={"name": 3}, by_host=stored)
    assert not any("x" in line.split() for line in render_hosts([finding], 80))


OSLO = {
    "place": "within 29 km of Oslo",
    "operator": "Fjord AS",
    "nearest_km": 390.4,
    "farthest_km": 449.6,
    "date": "2026-11-27T10:00:00+00:00",
}


def test_comparison_shows_distance_of_servers() -> None:
    lines = render_comparison([make_finding("folder:/x", 0.3), make_finding("dropbox", 0.1, location=OSLO)], 80)
    assert lines[1].split() == ["provider", "km", "away", "loss", "rate", "p50", "ms"]
    assert rows(lines)["dropbox"][0] == "390-450"
    assert rows(lines)["folder:/x"][0] == "-"
    (note,) = [line for line in lines if line.startswith("note: dropbox")]
    assert note == "note: dropbox: Fjord AS, within 29 km of Oslo, 390-450 km away (located"
    assert lines[lines.index(note) + 1] == "  2026-11-27)"


@pytest.mark.parametrize("location", [None, "Oslo", {}, {"place": 7}, {**OSLO, "nearest_km": "far"}])
def test_a_distance_that_is_not_known_has_no_column(location: object) -> None:
    lines = render_comparison([make_finding("folder:/x", 0.3), make_finding("dropbox", 0.1, location=location)], 80)
    assert "km away" not in lines[1]
