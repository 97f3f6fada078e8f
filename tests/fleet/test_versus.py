"""``--cloudbench-versus``: one test of any kind measures two sides in turns, with any number of agents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_cloudbench.load.versus.turns import check_options
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results import parquet

from .harness import FinishedRun, Lab, lab_in

A, B = "folder:a", "folder:b"
DECIDING = ("-ocloudbench_versus_metric=failed_rate knee_threads",)
PAGE = ("--cloudbench-report", "page.html")
ORDER = "AB" + "ABBABAABBAABABBA"
"""The warm-up, and at least as many pairs as are needed to find two sides without failures equal."""

TESTS = """
    import json
    from pytest_cloudbench.model import Verb

    MADE = []

    @pytest.fixture(scope="module")
    def once():
        MADE.append(1)
        return len(MADE)

    def test_two(experiment, payloads, provider, fleet, once):
        load = {"arrival": ThinkTime(0.0), "sensors": 2, "ops_per_sensor": 100}
        kept = experiment.run(payloads.random(300), **load, label="up", keep=True)
        got = experiment.run(on=kept.files, operation=Verb.GET, **load, label="down")
        experiment.run(on=kept.files, operation=Verb.STAT, **load, label="down")
        kept.check()
        assert got["ok"] == 200
        told = {"side": provider.spec, "seed": experiment.facts.seed, "once": once}
        with (HERE / f"told-{fleet.name}.jsonl").open("a") as file:
            file.write(json.dumps(told) + chr(10))

    def test_concluded(experiment):
        experiment.conclude({"knee_threads": 4.0}, [1.0], stats_of="a test", columns=["knee_threads"])
"""

BENCH = """
    [[experiment]]
    name = "file"
    sensors = 2
    ops_per_sensor = 100
    payload.generator = "random"
    payload.size_bytes = 300
    arrival.process = "think"
    arrival.interval_s = 0
    [[experiment.expect]]
    metric = "loss_rate"
    at_most = 0
"""


def run(lab: Lab, *args: str, minutes: str = "5") -> FinishedRun:
    sides = ("--provider", A, "--cloudbench-versus", B, f"-ocloudbench_versus_minutes={minutes}")
    return lab.run(*sides, *args, timeout_s=300)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """Tests and a bench file, in one process, with a command before each block."""
    with lab_in(tmp_path_factory.mktemp("versus")) as lab:
        lab.write(TESTS).write(BENCH, "some.bench.toml")
        (lab.folder / "setup.sh").write_text("echo $CLOUDBENCH_SIDE$CLOUDBENCH_BLOCK >> setup.txt; sleep 1 &\n")
        setup = ("-ocloudbench_versus_setup=sh setup.sh",)
        yield run(lab, *DECIDING, *setup, *PAGE, "--junitxml=junit.xml", "test_it.py", "some.bench.toml")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """The same tests with two agents."""
    with lab_in(tmp_path_factory.mktemp("versus")) as lab:
        lab.write(TESTS)
        yield run(lab, *DECIDING, "-n2", "test_it.py")


def versus(ended: FinishedRun, name: str) -> Mapping[str, Any]:
    comparison: Mapping[str, Any] = next(
        entry["extra_info"]["versus"] for entry in ended.document["benchmarks"] if entry["fullname"].endswith(name)
    )
    return comparison


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "together"])
def test_each_experiment_is_one_entry_of_both_sides(kind: str, request: pytest.FixtureRequest) -> None:
    ended: FinishedRun = request.getfixturevalue(kind)
    assert ended.status == 0, ended.text
    assert ended.leftovers == []
    tests = {f"test_it.py::test_two[{A}-vs-{B}]#{label}" for label in ("up", "down", "down-2")}
    tests |= {f"test_it.py::test_concluded[{A}-vs-{B}]"}
    if kind == "alone":
        tests |= {f"some.bench.toml::file[{A}-vs-{B}]#upload"}
    assert sorted(entry["fullname"] for entry in ended.document["benchmarks"]) == sorted(tests)
    for entry in ended.document["benchmarks"]:
        info = entry["extra_info"]
        comparison = info["versus"]
        assert (comparison["A"], comparison["B"], comparison["stopped"]) == (A, B, "decided")
        assert "".join(block["side"] for block in comparison["blocks"]) == ORDER[: len(comparison["blocks"])]
        assert [block["is_warm_up"] for block in comparison["blocks"]] == [True, True] + [False] * (
            len(comparison["blocks"]) - 2
        )
        assert comparison["pairs"] == (len(comparison["blocks"]) - 2) / 2
        assert "response_p50" not in info
        assert info["outcome"] == "passed"
        assert info["agents"] == (2 if kind == "together" else 1)
        decided = comparison["differences"]["knee_threads" if "concluded" in entry["name"] else "failed_rate"]
        assert (decided["answer"], decided["change"]) == ("no difference", 0)


def test_blocks_of_a_pair_share_a_seed_and_fixtures_of_a_module_live_on(alone: FinishedRun) -> None:
    rows = [json.loads(line) for line in (alone.folder / "told-main.jsonl").read_text().splitlines()]
    assert [row["side"] for row in rows] == [A if side == "A" else B for side in ORDER[: len(rows)]]
    seeds = [row["seed"] for row in rows]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == len(rows) / 2 >= 5
    assert {row["once"] for row in rows} == {1}


@pytest.mark.slow
def test_records_of_compared_sides_name_their_side(together: FinishedRun) -> None:
    blocks = versus(together, "#down")["blocks"]
    for block in blocks:
        (path,) = together.folder.rglob(Path(block["ops_file"]).name)
        columns, metadata = parquet.read(path.read_bytes())
        assert (metadata["side"], metadata["block"]) == (block["side"], str(block["number"]))
        assert metadata["provider"] == (A if block["side"] == "A" else B)
        assert set(columns["agent"]) == {0, 1}
    sides = [json.loads(line)["side"] for line in (together.folder / "told-gw1.jsonl").read_text().splitlines()]
    assert sides == [A if side == "A" else B for side in ORDER[: len(sides)]]


def test_the_command_runs_before_each_block_with_its_side(alone: FinishedRun) -> None:
    lines = (alone.folder / "setup.txt").read_text().splitlines()
    assert lines[:12] == [f"{side}{number}" for number, side in enumerate(ORDER[:12])]


def test_the_table_and_junit_give_the_answer(alone: FinishedRun) -> None:
    assert "A versus B" in alone.text
    rows = [line for line in alone.lines_with("failed_rate") if "no difference above 0.5 points" in line]
    assert len(rows) == 4
    assert re.search(r"0\.00 % +0\.00 % +\+0\.0 points \[-0\.\d, \+0\.\d\]", rows[0])
    suite = ElementTree.parse(alone.folder / "junit.xml")
    properties = {element.get("name"): element.get("value") for element in suite.iter("property")}
    assert properties["cloudbench.up.versus.failed_rate"] == "no difference"
    assert properties["cloudbench.up.versus.stopped"] == "decided"
    assert properties["cloudbench.versus.knee_threads"] == "no difference"


def test_the_page_of_the_session_has_both_sides(alone: FinishedRun) -> None:
    page = (alone.folder / "page.html").read_text("utf-8")
    assert page.count("<h4>B against A</h4>") == 5, "an interval plot for each experiment"
    assert "no difference above 0.5 points" in page
    assert "Nothing was measured" not in page


def test_a_comparison_is_no_baseline(alone: FinishedRun) -> None:
    from pytest_cloudbench.judge.baseline import BaselineCandidate, choose_baseline

    info = alone.document["benchmarks"][0]["extra_info"]
    assert (
        choose_baseline([BaselineCandidate("0001", info)], info, "failed_rate").remark
        == "no baseline: the stored run compared two sides"
    )


TROUBLE = """
    def test_fails_on_b(experiment, payloads, provider):
        experiment.run(payloads.random(9), arrival=ThinkTime(0.0), sensors=1, ops_per_sensor=2)
        assert provider.spec == "folder:a"

    def test_one_agent_fails(experiment, payloads, provider, fleet):
        assert provider.spec == "folder:a" or fleet.index == 0
        experiment.run(payloads.random(9), arrival=ThinkTime(0.0), sensors=2, ops_per_sensor=2)

    def test_skips(experiment, provider):
        pytest.skip("nothing to do")

    def test_slow(experiment, payloads):
        experiment.run(payloads.random(9), arrival=ThinkTime(0.0), sensors=2, ops_per_sensor=2)
"""


@pytest.mark.slow
def test_failure_in_a_block_ends_the_comparison(tmp_path: Path, ctrl_c: None) -> None:
    with lab_in(tmp_path) as lab:
        lab.write(TROUBLE)
        ended = run(lab, "-n2", "-rs", "test_it.py", minutes="0.0001")
    assert ended.counts() == {"failed": 2, "passed": 1, "skipped": 1}
    assert "nothing to do" in ended.text
    infos = {entry["name"].partition("[")[0]: entry["extra_info"] for entry in ended.document["benchmarks"]}
    assert infos["test_fails_on_b"]["versus"]["stopped"] == "the test failed in block 1 (side B)"
    assert infos["test_fails_on_b"]["outcome"] == "failed"
    assert infos["test_one_agent_fails"]["versus"]["pairs"] == 0
    assert infos["test_slow"]["versus"]["stopped"] == "the budget of 0.0001 min is used up"
    assert "test_skips" not in infos


def test_failing_setup_command_is_reported_in_one_line(tmp_path: Path, ctrl_c: None) -> None:
    with lab_in(tmp_path) as lab:
        lab.write(TROUBLE)
        setup = """sh -c 'echo trying; echo no old server here; [ $CLOUDBENCH_SIDE = A ]'"""
        ended = run(lab, f"-ocloudbench_versus_setup={setup}", "test_it.py::test_slow")
    assert ended.counts() == {"failed": 1}
    (line,) = ended.lines_with("ended with status 1")[:1]
    assert line.startswith("cloudbench_versus_setup")
    assert line.endswith("side B, block 1: ended with status 1: no old server here")
    assert "Traceback" not in ended.text


def make_options(**overrides: Any) -> SimpleNamespace:
    names = ("versus", "versus_setup", "versus_metric", "fail")
    empty: dict[str, Any] = {name: [] if name in ("versus_metric", "fail") else None for name in names}
    return SimpleNamespace(**{f"cloudbench_{name}": value for name, value in {**empty, **overrides}.items()})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"versus_setup": "true"}, "cloudbench_versus_setup: needs --cloudbench-versus SPEC"),
        ({"versus_metric": ["quiet_p50"]}, "cloudbench_versus_metric: needs --cloudbench-versus SPEC"),
        ({"versus": A, "versus_metric": ["quiet_p05"]}, "quiet_p05: no such metric; did you mean quiet_p50?"),
        (
            {"versus": "dropbox@11.36.2"},
            "two versions of it cannot be two sides: measure each in a virtual environment",
        ),
        ({"versus": A, "fail": ["loss_rate:0"]}, "leave one out"),
        ({"versus": A, "versus_setup": "'"}, "not a command"),
        ({"versus": A, "versus_setup": "  "}, "cloudbench_versus_setup '  ': names no command"),
    ],
)
def test_contradicting_versus_options_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        check_options(make_options(**settings))
    check_options(make_options(versus=A, versus_metric=["response_p99"], versus_setup="sh -c 'x y'"))
    check_options(make_options())


def test_an_unknown_side_is_refused_before_anything_starts(lab: Lab) -> None:
    ended = lab.write(TROUBLE).run("--provider", A, "--cloudbench-versus", "nowhere:x", store=False)
    assert ended.status == pytest.ExitCode.USAGE_ERROR
    assert "nowhere" in ended.text
    assert not (lab.folder / "results").exists()


def test_a_sync_client_is_not_compared_so_and_the_test_says_how(lab: Lab) -> None:
    run = lab.write("    def test_it(lab):\n        pass\n").run(
        "--provider", A, "--cloudbench-versus", B, "--client", "reference"
    )  # fmt: skip
    assert run.counts() == {"error": 1}, run.text
    assert run.lines_with("--cloudbench-versus compares providers; to compare sync clients, name both")
