"""The project's own measurements: a machine that gets slower in the middle changes no ratio."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median_low
from xml.etree import ElementTree

import pytest

from benchmarks import bench_gate, gate_recorded, run
from benchmarks.gate_cases import COURSES, follow
from benchmarks.gate_rules import RULES, change_points, last_run, slower_p_value
from benchmarks.gate_sessions import Change, Experiment, Noise, Session, simulated_session
from benchmarks.harness import ROOT, Blocks, Figure, alternating, children_cpu_s, measure_growth
from benchmarks.real_sessions import count_answers, name_history, read_sessions, summary, table
from benchmarks.traffic_captures import KINDS, write_capture
from pytest_cloudbench.net.dissect import open_capture
from pytest_cloudbench.net.traffic import analyze
from tests.limits import HANG_S


@pytest.mark.parametrize("slowdown", [1.0, 1.1, 2.0])
def test_drift_cancels_out_of_a_ratio(slowdown: float) -> None:
    """Each block is slower than the one before by a tenth of this machine's slowdown."""
    speed = (slowdown ** (number / 10) for number in itertools.count())
    blocks = alternating(lambda: 3.0 * next(speed), lambda: 2.0 * next(speed), 8)
    assert blocks.ratio == pytest.approx(1.5, rel=0.01)


def test_blocks_take_turns_after_one_of_each_that_does_not_count() -> None:
    order: list[str] = []

    def block(name: str) -> float:
        order.append(name)
        return float(len(order))

    blocks = alternating(lambda: block("a"), lambda: block("b"), 3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert blocks == Blocks([3.0, 6.0, 7.0], [4.0, 5.0, 8.0])


@pytest.mark.parametrize(
    ("pairs", "ranks"),
    [(4, (1, 4)), (6, (1, 6)), (20, (6, 15)), (100, (40, 61))],
    ids=str,
)
def test_the_median_lies_between_the_ranks_of_the_sign_test(pairs: int, ranks: tuple[int, int]) -> None:
    """Any table of the sign test has these ranks."""
    blocks = Blocks([float(number) for number in range(pairs, 0, -1)], [1.0] * pairs)
    assert blocks.interval95 == ranks


@pytest.mark.parametrize(
    ("value", "sense", "met"), [(2.0, "at most", True), (2.0, "below", False), (1.9, "at least", False)]
)
def test_a_bound_is_met_or_not(value: float, sense: str, met: bool) -> None:
    assert Figure("a", value, "x", 2.0, sense).met is met  # type: ignore[arg-type]  # a parameter is any text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_the_process_that_measures_is_not_counted(tmp_path: Path) -> None:
    large = "import subprocess, sys; held = bytearray(b'x') * 400_000_000; subprocess.run(sys.argv[1:], check=True)"
    command = [sys.executable, "-m", "benchmarks.bench_raid", str(tmp_path), "1000000"]
    done = subprocess.run(
        [sys.executable, "-c", large, *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert all(0 < int(word) < 300_000 for word in done.stdout.split()), done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cpu_of_children_is_that_of_the_wanted_ones() -> None:
    busy = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", busy, "some/gateway"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert children_cpu_s(lambda command: command.endswith("/gateway")) >= 0.2
        assert children_cpu_s(lambda command: command.endswith("/storage1")) == 0
        child.communicate(timeout=HANG_S)


def write_sessions(path: Path) -> Path:
    """Write two histories of 12 unchanged sessions, in each of which the second judged one is red, one changed session,
    and one of a closed loop under a load that its history does not have."""
    lines = []
    for history in ("2026-01-01", "2026-01-02"):
        session = {"change": "", "history": history, "start": history, "load": 1.5, "machine": "toy"}
        lines += [{**session, "answers": {"inconclusive": 20}}] * 10
        lines += [
            {**session, "answers": {"met": 19, "inconclusive": 1}},
            {**session, "answers": {"met": 19, "broken": 1}},
        ]
    lines.append({**session, "change": "p50 +10 %", "answers": {"broken": 18, "inconclusive": 2}, "load": 0.5})
    session |= {"loop": "closed", "under": "bursts", "aside": True}
    lines.append({**session, "answers": {"met": 20}, "metrics": {"met": 90, "broken": 1, "inconclusive": 9}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_real_sessions_are_judged_once_their_own_history_is_long_enough(tmp_path: Path) -> None:
    sessions = read_sessions(write_sessions(tmp_path / "sessions.jsonl"))
    new_load = "nothing changed, closed loop, under bursts, which no earlier session was"
    assert summary(sessions) == {
        "dates": ["2026-01-01", "2026-01-02"], "machines": ["toy"], "load": [0.5, 1.5], "judged_sessions": 5,
        "alarmed_sessions": 2, "alarmed_interval": [0.118, 0.769],
        "kinds": {
            "nothing changed": {"judged": 4, "red": 2, "interval": [0.15, 0.85], "metrics": {},
                                "experiments": {"met": 76, "inconclusive": 2, "broken": 2}},
            new_load: {"judged": 1, "red": 0, "interval": [0.0, 0.793], "experiments": {"met": 20},
                       "metrics": {"met": 90, "broken": 1, "inconclusive": 9}},
            "p50 +10 %": {"judged": 1, "red": 1, "interval": [0.207, 1.0], "metrics": {},
                          "experiments": {"broken": 18, "inconclusive": 2}},
        },
    }  # fmt: skip
    assert table(sessions)[2:] == [
        "| nothing changed | 4 | 2 | 76 | 2 | 2 | not recorded |",
        f"| {new_load} | 1 | 0 | 20 | 0 | 0 | 91 % |",
        "| p50 +10 % | 1 | 1 | 0 | 2 | 18 | not recorded |",
    ]


def test_a_session_names_the_metrics_that_were_called_broken(tmp_path: Path) -> None:
    cases = [
        ("test_a", {"cloudbench.gate": "broken", "cloudbench.gate.quiet_p50": "broken +11 % (+8 to +14 %)"}),
        ("test_b", {"cloudbench.gate": "met", "cloudbench.gate.quiet_p50": "met +0.1 % (-1 to +1.2 %)"}),
        ("test_c", {}),
        ("test_d", {"cloudbench.gate": "broken", "cloudbench.gate.can_share": "broken"}),
    ]
    suite = ElementTree.Element("testsuite")
    for name, properties in cases:
        element = ElementTree.SubElement(ElementTree.SubElement(suite, "testcase", name=name), "properties")
        for key, value in properties.items():
            ElementTree.SubElement(element, "property", name=key, value=value)
    ElementTree.ElementTree(suite).write(tmp_path / "junit.xml")
    assert count_answers(tmp_path / "junit.xml") == (
        {"broken": 2, "met": 1, "none": 1},
        {"broken": 2, "met": 1},
        ["test_a: quiet_p50 broken +11 % (+8 to +14 %)", "test_d: can_share broken"],
    )  # fmt: skip


def test_two_histories_of_the_same_second_are_two() -> None:
    assert len({name_history() for _ in range(100)}) == 100


def test_the_documents_have_the_table_of_the_recorded_sessions() -> None:
    sessions = read_sessions(ROOT / "benchmarks" / "real-sessions.jsonl")
    figures, text = summary(sessions), (ROOT / "docs" / "method" / "gate.md").read_text("utf-8")
    assert figures["judged_sessions"] >= 30
    assert figures["alarmed_sessions"] == 0
    assert "\n".join(table(sessions)) in text
    claims = [
        f"at most {figures['alarmed_interval'][1] * 100:g} %",
        *figures["dates"],
        *figures["machines"],
        *figures["load"],
    ]
    assert [claim for claim in claims if str(claim) not in " ".join(text.split())] == []


def test_make_bench_measures_all_figures_of_the_gate() -> None:
    assert run.GROUPS["bench_gate"].figures == bench_gate.FIGURES


def test_every_module_of_figures_is_measured_and_its_code_is_there() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert set(run.GROUPS) == modules
    code = [path for group in run.GROUPS.values() for path in group.code]
    assert [path for path in code if not (ROOT / "src" / "pytest_cloudbench" / path).exists()] == []


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_growth_exponent_is_independent_of_startup_cost(power: float) -> None:
    growth = measure_growth("files", 1000, lambda size: 0.1 + 0.001 * size**power)
    assert growth.sizes == (1000, 10_000, 100_000)
    assert growth.exponent == pytest.approx(power, abs=0.02)


def test_growth_of_a_cost_too_small_to_count_is_unknown() -> None:
    assert math.isnan(measure_growth("files", 1, lambda size: 0.0).exponent)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the code of one figure, whose results belong to its first commit."""
    code = tmp_path / "src" / "pytest_cloudbench" / "net"
    for folder in (code, tmp_path / "benchmarks"):
        folder.mkdir(parents=True)
        (folder / "bench_traffic.py").write_text("first\n")
    (tmp_path / "benchmarks" / "results.json").write_text("{}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "benchmarks" / "results.json")
    run._describe_changes.cache_clear()  # repositories that are made within one second have the same commit
    return tmp_path


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("changed", "age"),
    [
        ("src/pytest_cloudbench/net/bench_traffic.py", "older than the code that it measures"),
        ("benchmarks/bench_traffic.py", "older than the code that it measures"),
        ("README.md", ""),
    ],
)
def test_a_figure_is_old_once_its_code_has_changed(checkout: Path, changed: str, age: str) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / changed).write_text("second\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "second")
    assert run.describe_age("traffic_2gb_rss_mb", commit) == age


def test_a_figure_that_nothing_measures_or_no_commit_has_is_named(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert run.describe_age("traffic_2gb_rss_mb", "0" * 12) == "of a commit that is not here"
    assert run.describe_age("traffic_2gb_rss_mb", f"{commit}-dirty") == "of a checkout with changes"
    assert run.describe_age("forgotten", commit) == "of a benchmark that is gone"


def test_figures_are_of_a_commit(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "benchmarks" / "bench_traffic.py").write_text("not committed\n")
    with pytest.raises(SystemExit):
        run.main(["traffic_2gb_rss_mb"])
    assert "the checkout has changes" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_sees_the_payload_of_each_kind_of_capture(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    payload_bytes = write_capture(kind, path, 2000)
    with open_capture(path) as (buffer, release):
        summary = analyze(buffer, release=release).as_dict()
    assert summary["packets"] == 2000
    assert summary["payload_up_bytes"] + summary["payload_down_bytes"] == payload_bytes > 0


def test_stored_figures_belong_to_clean_commits_and_existing_measurements() -> None:
    figures = json.loads(run.RESULTS.read_text("utf-8"))["figures"]
    assert [name for name, figure in figures.items() if figure["commit"].endswith("-dirty")] == []
    assert [name for name, figure in figures.items() if "gone" in run.describe_age(name, figure["commit"])] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="an emulator and a server beside busy processes")
def test_record_holds_gate_figures_of_each_kind_of_run(tmp_path: Path) -> None:
    path = gate_recorded.record("bursts", 0, tmp_path, ops=60, rounds=2)
    record = gate_recorded.read_record("bursts", tmp_path)
    assert record is not None
    assert [tuple(by_kind) for by_kind in record.rounds] == [gate_recorded.KINDS] * 2
    for numbers in (numbers for by_kind in record.rounds for numbers in by_kind.values()):
        assert (numbers["ops"], numbers["files"], numbers["silently_lost"]) == (60, 60, 0)
        assert numbers["requests_usual"] == 1
        assert 0 <= numbers["starved_share"] < 1
        assert len(numbers[gate_recorded.SAMPLE]) == numbers["quiet_ops"]
        service_us, own_us, other_us, late_us = (numbers[name] for name in gate_recorded.COLUMNS)
        assert median_low(service_us) == pytest.approx(numbers["service_p50"] * 1e6, abs=10)
        assert all(own + other <= took + 20 for took, own, other in zip(service_us, own_us, other_us, strict=True))
        waited_us, took_us = sum(own_us) + sum(other_us), sum(service_us)
        assert waited_us / took_us == pytest.approx(numbers["starved_share"], abs=0.01)
        assert len(late_us) == 60
        assert numbers["reference_cpu_s"] > 0, "as the gate measures it"
        slower = gate_recorded.compute_unstarved(numbers, 1.0)["unstarved_p50"]
        assert numbers["unstarved_p50"] < slower <= 2.01 * numbers["unstarved_p50"]
    with gzip.open(path, "rt", encoding="utf-8") as file:
        _, *runs = map(json.loads, file)
    for measured in runs:  # measured by the product, while the numbers of a record are computed from columns
        computed = gate_recorded.compute_unstarved(measured)
        assert measured["unstarved_p50"] == pytest.approx(computed["unstarved_p50"], rel=0.01)
        assert measured["starved_elsewhere_share"] == pytest.approx(computed["starved_elsewhere_share"], abs=0.01)
        assert measured["unstarved_p50"] <= measured["service_p50"]
    assert len(runs) == 2 * len(gate_recorded.KINDS)
    open_us = [us for by_kind in record.rounds for us in by_kind["open"][gate_recorded.SAMPLE]]
    assert min(open_us, default=50_000) > 30_000, "the emulator takes 0.05 s, with a sigma of 0.1"
    assert path.stat().st_size < 20_000


def test_processes_of_a_load_end_with_it() -> None:
    def busy() -> int:
        result = subprocess.run(["ps", "-ww", "-o", "args", "--ppid", str(os.getpid())], capture_output=True, text=True,
                                check=True, timeout=HANG_S)  # fmt: skip
        return result.stdout.count("os.getppid()")

    before = busy()
    with gate_recorded.busy_machine("busy4"):
        assert busy() > before
    assert busy() == before


def make_session(former: list[dict[str, float]], *runs: dict[str, float]) -> Session:
    return Session([Experiment("t0", former, runs[0], runs[1:])], lambda number, before: runs[0])


@pytest.mark.parametrize(
    ("ratio", "both_ways", "now", "answer"),
    [(1.1, False, 1.09, "met"), (1.1, False, 1.11, "broken"), (1.1, False, 0.5, "met"), (1.1, True, 0.5, "broken"),
     (2.0, False, 1.9, "met"), (2.0, False, 2.1, "broken")],
)  # fmt: skip
def test_the_last_run_alone_decides_by_a_ratio(ratio: float, both_ways: bool, now: float, answer: str) -> None:
    session = make_session([{"quiet_p50": 5.0}, {"quiet_p50": 1.0}], {"quiet_p50": now})
    assert [result.answer for result in last_run(session, ratio, both_ways=both_ways)] == [answer]


@pytest.mark.slow
def test_operations_are_compared_as_scipy_does() -> None:
    stats = pytest.importorskip("scipy.stats")
    for seed in range(5):
        draws = random.Random(seed)
        now, before = [draws.randrange(20) + seed for _ in range(40)], [draws.randrange(20) for _ in range(60)]
        expected = stats.mannwhitneyu(now, before, alternative="greater", method="asymptotic").pvalue
        assert slower_p_value(now, before) == pytest.approx(expected)
    assert slower_p_value([3.0, 3.0], [3.0]) == 1.0


def test_a_change_point_is_news_for_some_runs_only() -> None:
    def answer(before: int, after: int) -> str:
        runs = [{"quiet_p50": 1.0 + 0.001 * (number % 3)} for number in range(before)]
        runs += [{"quiet_p50": 1.5 + 0.001 * (number % 3)} for number in range(after)]
        (result,) = change_points(make_session(runs[:-1], runs[-1]), lambda values: [before])
        return result.answer

    assert [answer(20, after) for after in (4, 10, 11)] == ["broken", "broken", "met"]


def test_a_rule_sees_the_same_session_again() -> None:
    first, second = (simulated_session(Noise(300), Change(p50=0.1, failed=0.01), "same", 3) for _ in range(2))
    assert first.experiments == second.experiments
    assert [first.again(number, 2) for number in range(3)] == [second.again(number, 2) for number in range(3)]
    assert first.again(0, 0) != first.again(0, 1)


def test_a_step_is_red_and_stays_so_where_its_former_rule_forgets_it() -> None:
    rule, former = list(RULES)[:2]
    assert follow(COURSES["step_15_1"], rule, "a seed") == (True, False, True, False)
    assert follow(COURSES["drift_03_1"], former, "a seed") == (False, False, False, False)
