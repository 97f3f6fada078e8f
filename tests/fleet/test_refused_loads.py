"""Loads that make no sense or cannot fit. They are refused in one line, before anything is allocated for them."""

from __future__ import annotations

import textwrap

import pytest

from pytest_cloudbench.load.engine.limits import available_bytes
from pytest_cloudbench.load.engine.memory import check_memory
from pytest_cloudbench.load.engine.operations import Deal
from pytest_cloudbench.model import UsageError, Verb
from pytest_cloudbench.workload.arrival import FixedInterval, ThinkTime, Threads
from pytest_cloudbench.workload.trace import Mixture, Replay, parse_trace
from tests.plugin.configs.test_benchcloud import changed
from tests.runs import SPREAD, Spread

from .harness import FOLDER, Lab, outcomes

GB = 10**9


STATED = """
    import pytest

    @pytest.mark.parametrize("name", ["emulated", "published", "agents"])
    def test_run(experiment, payloads, name):
        experiment.run(payloads.random(9), arrival=FixedInterval(1), sensors=1, ops_per_sensor=1, extra={name: 3})

    def test_conclusion(experiment):
        experiment.conclude({"agents": 3}, [1.0], stats_of="nothing")
"""


def test_own_values_cannot_replace_what_an_entry_states(lab: Lab) -> None:
    run = lab.write(STATED).run(*FOLDER)
    assert run.counts() == {"failed": 4}, run.text
    for name in ("emulated", "published", "agents"):
        assert run.lines_with(f"{name}: each entry says this itself; give your value another name")


UNSTORABLE = """
    import pytest

    ODD = {"key": {(1, 2): 3}, "bytes": b"a", "surrogate": "\\udcff"}

    @pytest.mark.parametrize("name", ["extra", "published"])
    @pytest.mark.parametrize("odd", ODD)
    def test_run(experiment, payloads, name, odd):
        arrival = FixedInterval(1)
        experiment.run(payloads.random(9), arrival=arrival, sensors=1, ops_per_sensor=1, **{name: {"x": ODD[odd]}})

    def test_other(experiment, payloads):
        experiment.run(payloads.random(9), arrival=FixedInterval(1), sensors=1, ops_per_sensor=1, extra={"x": {1, 2}})
"""


@SPREAD
def test_values_that_cannot_be_stored_fail_their_test_alone(lab: Lab, spread: Spread) -> None:
    run = lab.write(UNSTORABLE).run(*FOLDER, *spread, "--benchmark-autosave")
    assert run.counts() == {"failed": 6, "passed": 1}, run.text
    for name in ("extra", "published"):
        for why in ("keys must be str", "bytes are no text", "'utf-8' codec can't encode"):
            assert run.lines_with(f"{name}: cannot be stored as JSON: {why}")
    assert len(list(lab.folder.glob("results/*/0001_*.json"))) == 1


def test_available_memory_is_known() -> None:
    size_bytes = available_bytes()
    assert size_bytes is not None
    assert size_bytes > 10**6


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (Deal(FixedInterval(1), 10**6, 10**6), "1,000,000,000,000 operations would take about 300 TB of memory"),
        (Deal(FixedInterval(1), 10**9, 10**9), "operations would take about 300,000 PB of memory"),
        (
            Deal(Mixture(FixedInterval(1), {Verb.PUT: 1.0}, 1), 10**6, 10**6),
            "1,000,000,000,000 operations would take about 300 TB of memory",
        ),
        (Deal(ThinkTime(1), 1, 10**9), "1,000,000,000 operations would take about 150 GB of memory"),
        (Deal(Threads(4), 10**7, 1), "10,000,000 operations would take about 9 GB of memory"),
        (Deal(Replay(parse_trace("time,sensor,operation,size\n0,1,put,1\n")), 10**9, 10**9), "1,000,000,000 sensors"),
    ],
)
def test_load_that_exceeds_memory_is_refused(deal: Deal, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_memory(deal, lambda: GB)
    assert "and this machine has 1 GB; use fewer" in str(caught.value)
    check_memory(deal, lambda: None)
    check_memory(deal, lambda: 10**30)


def test_small_loads_do_not_query_available_memory() -> None:
    def fail() -> int:
        raise AssertionError

    check_memory(Deal(FixedInterval(1), 10_000, 10), fail)
    check_memory(Deal(FixedInterval(1), 1_000_000, 1), lambda: GB)


@pytest.mark.parametrize("arrival", [Threads(3), Threads(7), ThinkTime(1)])
@pytest.mark.parametrize("agents", [1, 2, 5])
def test_files_are_counted_without_being_made(arrival: Threads | ThinkTime, agents: int) -> None:
    deal = Deal(arrival, 11, 1 if isinstance(arrival, Threads) else 4)
    counts = [deal.count_agent_files(index, agents) for index in range(agents)]
    assert counts == [len(deal.agent_files(index, agents)) for index in range(agents)]


BENCH = """
[[experiment]]
name = "x"
sensors = 1000000
ops_per_sensor = 1000000
payload = {generator = "random", size_bytes = 300}
arrival = {process = "fixed", interval_s = 1}
"""
OLD = changed(("test", "times", "1000000000000"), ("file_generator", "size", "10"), ("test", "sleep", "False"))


@pytest.mark.slow
@SPREAD
def test_oversized_loads_of_every_source_are_refused(lab: Lab, spread: Spread) -> None:
    (lab.folder / "x.bench.toml").write_text(textwrap.dedent(BENCH))
    (lab.folder / "old.conf").write_text(OLD)
    lab.write("""
        from pytest_cloudbench.workload.arrival import Threads
        LOADS = {
            "open": dict(arrival=FixedInterval(1), sensors=10**6, ops_per_sensor=10**6),
            "closed": dict(arrival=ThinkTime(1), sensors=1, ops_per_sensor=10**12),
            "pool": dict(arrival=Threads(4), files=10**12),
        }

        @pytest.mark.parametrize("name", LOADS)
        def test_it(experiment, payloads, name):
            experiment.run(payloads.random(10), **LOADS[name])
    """)
    run = lab.run("test_it.py", "x.bench.toml", "old.conf", *FOLDER, *spread, "-rA")
    assert outcomes(run.text) == {"FAILED": 5}, run.text
    assert len([line for line in run.lines_with("FAILED") if "1,000,000,000,000 operations would take" in line]) == 5
    assert not run.lines_with("Traceback")
    assert run.duration_s < 30


WRONG = {
    "sensors=0, ops_per_sensor=5": "sensors=0, ops_per_sensor=5: ",
    "sensors=5, ops_per_sensor=0": "sensors=5, ops_per_sensor=0: ",
    "sensors=5, ops_per_sensor=-3": "ops_per_sensor=-3: expected a whole number of 1 or more",
    "sensors=-5, ops_per_sensor=3": "sensors=-5: expected a whole number of 1 or more",
    "sensors=2.5, ops_per_sensor=3": "sensors=2.5: expected a whole number of 1 or more",
    "sensors=True, ops_per_sensor=3": "sensors=True: expected a whole number of 1 or more",
    "sensors=5, ops_per_sensor=float('nan')": "ops_per_sensor=nan: expected a whole number of 1 or more",
}


@pytest.mark.slow
def test_meaningless_numbers_of_a_run_are_refused(lab: Lab) -> None:
    for number, code in enumerate(WRONG):
        for kind in ("FixedInterval(0.01)", "ThinkTime(0.01)"):
            lab.write(f"""
                def test_it(experiment, payloads):
                    experiment.run(payloads.random(10), arrival={kind}, {code})
            """, f"test_{number}_{kind[:5]}.py")  # fmt: skip
    run = lab.run(*FOLDER, "-rA")
    assert outcomes(run.text) == {"FAILED": 2 * len(WRONG)}, run.text
    for message in WRONG.values():
        assert len([line for line in run.lines_with("FAILED") if f"experiment.run: {message}" in line]) == 2, message


OPTIONS = {
    ("cloudbench_max_lateness", "nan"): "0 or more seconds",
    ("cloudbench_max_lateness", "-1"): "0 or more seconds",
    ("cloudbench_max_lateness", "inf"): "0 or more seconds",
    ("cloudbench_patience", "nan"): "seconds above 0",
    ("cloudbench_patience", "inf"): "seconds above 0",
    ("cloudbench_patience", "-5"): "seconds above 0",
    ("--time-scale", "nan"): "a number above 0",
    ("--time-scale", "0"): "a number above 0",
    ("--max-ops", "-1"): "a whole number from 0 to 10^18",
    ("--max-ops", "1e3"): "a whole number from 0 to 10^18",
    ("--max-ops", "9" * 20): "a whole number from 0 to 10^18",
    ("--max-ops", "9" * 400): "a whole number from 0 to 10^18",
    ("--max-bytes", "-1"): "a whole number from 0 to 10^18",
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("option", "expected"), OPTIONS.items(), ids=[" ".join(option)[:30] for option in OPTIONS])
def test_meaningless_options_are_refused(lab: Lab, option: tuple[str, str], expected: str) -> None:
    lab.write("""
        def test_it(experiment, payloads):
            experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=1)
    """)
    is_key = not option[0].startswith("-")
    run = lab.run(*FOLDER, f"{'-o' * is_key}{option[0]}={option[1]}")
    assert run.status == 4, run.text
    (line,) = run.lines_with("ERROR: ")
    assert line == f"ERROR: {option[0]} {option[1]}: expected {expected}"


EMPTY = {
    "--provider": "SPEC", "--client": "NAME|FILE.toml", "--cloudbench-versus": "SPEC", "--cloudbench-seed": "TEXT",
    "--cloudbench-hosts": "FILE.toml", "--cloudbench-serve-at": "ADDRESS", "--cloudbench-fail": "METRIC:BOUND",
    "--cloudbench-results": "DIR", "--cloudbench-report": "FILE.html", "-ocloudbench_max_cost": "USD",
    "-ocloudbench_versus_metric": "METRIC", "-ocloudbench_cassette": "record|replay FILE",
}  # fmt: skip


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", [*list(EMPTY)[2:], *list(EMPTY)[:2]])
def test_an_option_that_asks_for_nothing_is_refused(lab: Lab, name: str) -> None:
    run = lab.write("def test_it(): pass").run(f"{name}=", store=False)
    assert run.status == 4, run.text
    assert run.lines_with(f"ERROR: {name.removeprefix('-o')}: expected {EMPTY[name]}, found an empty text")


def test_a_summary_may_be_nowhere(lab: Lab) -> None:
    assert lab.write("def test_it(): pass").run("--cloudbench-summary", "", store=False).status == 0


KEYS = {
    "cloudbench_keep_captures=maybe": "cloudbench_keep_captures: invalid truth value 'maybe'",
    "cloudbench_versus_metric='a": "cloudbench_versus_metric: No closing quotation",
    "cloudbench_files='*.toml": "cloudbench_files: No closing quotation",
    "cloudbench_max_csot=5": (
        "cloudbench_max_csot: pytest's configuration has no such key; did you mean cloudbench_max_cost?"
    ),
}


@pytest.mark.parametrize(("pair", "message"), KEYS.items(), ids=[pair.partition("=")[0] for pair in KEYS])
def test_mistaken_keys_are_refused_by_their_names(lab: Lab, pair: str, message: str) -> None:
    lab.write("def test_it(): pass")
    for options in ((f"-o{pair}",), ()):
        run = lab.run(*options)
        assert run.status == 4, run.text
        assert run.lines_with(f"ERROR: {message}"), run.text
        (lab.folder / "pytest.ini").write_text(f"[pytest]\n{pair.replace('=', ' = ', 1)}\n")


def test_a_key_of_a_conftest_may_begin_as_ours(lab: Lab) -> None:
    lab.write("def pytest_addoption(parser): parser.addini('cloudbench_own', '')", "conftest.py")
    lab.write("def test_it(pytestconfig): assert pytestconfig.getini('cloudbench_own') == 'x'")
    assert lab.run("-ocloudbench_own=x").status == 0


MARKS = {
    "": "nothing",
    "()": "nothing",
    "(spec='folder:objects')": "spec='folder:objects'",
    "(['folder:objects'])": "['folder:objects']",
    "('folder:objects', 5)": "'folder:objects', 5",
    "('')": "''",
}


def test_a_mark_that_names_no_provider_is_refused_in_one_line(lab: Lab) -> None:
    for number, arguments in enumerate(MARKS):
        lab.write(f"""
            @pytest.mark.cloudbench_provider{arguments}
            def test_it(experiment, payloads):
                experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=1)
        """, f"test_{number}.py")  # fmt: skip
    run = lab.run("--continue-on-collection-errors")
    assert run.counts() == {"errors": len(MARKS)}, run.text
    expected = 'cloudbench_provider: expected a text for each provider, such as "emulated:ideal", found '
    lines = [line for line in run.text.splitlines() if expected in line]
    assert lines == [f"test_{number}.py::test_it: {expected}{words}" for number, words in enumerate(MARKS.values())]
