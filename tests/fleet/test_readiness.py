"""Readiness times of emulators with a known delay, also with clocks that differ or jump."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.fleet.offsets import Offset, Span
from pytest_cloudbench.load.probes.reader import SHORT, Attempt
from pytest_cloudbench.load.probes.readiness import ReaderResult, compute_readiness, summarize
from tests.runs import SPREAD

from .harness import FOLDER, FinishedRun, Lab

SUITE = str(Path(__file__).parent.parent.parent / "suites" / "readiness" / "test_readiness.py")
DELAYS_S = (0.0, 0.3, 1.0)
MS = 1_000_000
SOUND = Span(Offset(0, 0, 0), Offset(0, 0, 0))


def write_profile(lab: Lab, name: str, settings: str) -> str:
    """Write a profile with these settings and no others, and return its provider."""
    meta = f'[meta]\nname = "{name}"\napi = "dropbox"\ndescription = "a known truth"\n'
    (lab.folder / f"{name}.toml").write_text(meta + settings)
    return f"emulated:./{name}.toml"


# --- readiness computed from times ----------------------------------------------------------------


def make_result(*attempts: tuple[int, int, str]) -> ReaderResult:
    return ReaderResult.from_attempts([Attempt(start, end, 0, 0, problem) for start, end, problem in attempts])


@given(
    began=st.integers(0, 10**9),
    upload=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    delay=st.integers(0, 3 * 10**9),
    tries=st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**8), st.booleans()), min_size=1, max_size=30),
    shift=st.integers(-(10**15), 10**15),
    errors=st.tuples(st.integers(-1000, 1000), st.integers(-1000, 1000)),
)
def test_the_truth_is_between_low_and_high(
    began: int, upload: tuple[int, int], delay: int, tries: list[tuple[int, int, bool]], shift: int,
    errors: tuple[int, int],
) -> None:  # fmt: skip
    """The true times are known: an attempt is intact once the file is ready, and a throttled one says nothing."""
    started, committed = began, began + upload[0]
    ended, ready = committed + upload[1], committed + delay
    clock_ns, attempts = 0, []
    for pause_ns, duration_ns, is_throttled in [*tries, (ready, 1, False)]:
        clock_ns += pause_ns
        problem = "throttled" if is_throttled else "not_found" if clock_ns < ready else ""
        attempts.append((clock_ns + shift, clock_ns + duration_ns + shift, problem))
        clock_ns += duration_ns
        if not problem:
            break
    offsets = [Offset(-shift + error, abs(error), 0) for error in errors]
    readiness = compute_readiness((started, ended), make_result(*attempts), Span(*offsets))
    assert readiness is not None
    truth_s = max(0, ready - ended) / 1e9
    assert readiness.low_s <= truth_s <= readiness.high_s
    assert 0 <= readiness.readiness_s == max(0.0, readiness.raw_s)
    assert readiness.low_s <= readiness.readiness_s <= readiness.high_s
    assert not readiness.is_impossible


def test_a_file_that_was_there_before_the_answer_is_ready_at_once_and_never_before() -> None:
    readiness = compute_readiness(
        (100 * MS, 200 * MS), make_result((90 * MS, 95 * MS, "not_found"), (150 * MS, 180 * MS, "")), SOUND
    )
    assert readiness is not None
    assert (readiness.readiness_s, readiness.raw_s, readiness.low_s, readiness.high_s) == (0, -0.05, 0, 0)
    assert readiness.resolution_s == 0.06


def test_a_file_that_was_read_before_its_upload_began_means_that_a_clock_has_jumped() -> None:
    """The clock jumps there and back, so that its offset before and after is the same."""
    metrics, ready, doubts = summarize([(100 * MS, 200 * MS)], [make_result((10 * MS, 20 * MS, ""))], SOUND)
    assert doubts == ["1 of 1 files were read before their upload began: a clock has jumped"]
    assert (metrics["readiness_max"], ready) == (None, [])
    bound = Span(Offset(0, 80 * MS, 0), Offset(0, 80 * MS, 0))
    assert summarize([(100 * MS, 200 * MS)], [make_result((10 * MS, 20 * MS, ""))], bound)[2] == []


def test_readiness_is_unknown_after_losses_or_without_clock_offset() -> None:
    """A lost file is worse than any number, a refused upload is no silent loss, an unknown clock gives no time."""
    good, bad = make_result((3 * MS, 4 * MS, "")), make_result((3 * MS, 4 * MS, SHORT), (5 * MS, 6 * MS, "network"))
    upload = (1 * MS, 2 * MS)
    metrics, ready, doubts = summarize([upload, upload, upload, None], [good, good, bad, bad], SOUND)
    assert (metrics["readiness_p50"], metrics["readiness_p90"], metrics["readiness_max"]) == (0.001, None, None)
    assert (metrics["loss_rate"], metrics["silent_loss_rate"], len(ready), doubts) == (0.5, 0.25, 2, [])
    after_refusal, _, _ = summarize([None], [good], SOUND)
    assert (after_refusal["loss_rate"], after_refusal["silent_loss_rate"], after_refusal["readiness_max"]) == (
        1,
        0,
        None,
    )
    metrics, ready, doubts = summarize([upload], [good], None)
    assert (metrics["readiness_p50"], ready) == (None, [])
    assert doubts == ["the offset between the clocks of writer and reader was not measured"]
    without_files, _, _ = summarize([], [], SOUND)
    assert set(without_files.values()) == {None}


@pytest.mark.parametrize("tries", [
    [],
    [(3 * MS, 4 * MS, "throttled")],
    [(0, 1 * MS, "not_found"), (3 * MS, 4 * MS, "server"), (5 * MS, 6 * MS, "server")],
])  # fmt: skip
def test_a_file_of_which_no_try_could_tell_is_neither_lost_nor_there(tries: list[tuple[int, int, str]]) -> None:
    upload, good = (1 * MS, 2 * MS), make_result((3 * MS, 4 * MS, ""))
    metrics, ready, doubts = summarize([upload, upload], [good, make_result(*tries)], SOUND)
    assert (metrics["loss_rate"], metrics["silent_loss_rate"], len(ready)) == (0, 0, 1)
    assert (metrics["readiness_p50"], metrics["readiness_max"]) == (0.001, None)
    (doubt,) = doubts
    assert doubt.startswith("whether 1 of 2 files were there is not known: no try could tell (")
    metrics, _, _ = summarize([upload], [make_result(*tries)], SOUND)
    assert (metrics["loss_rate"], metrics["silent_loss_rate"]) == (None, None)


@pytest.mark.parametrize(("intact_ms", "is_hidden"), [(900, False), (5000, True)])
def test_a_time_that_hides_behind_tries_that_could_not_tell_is_a_doubt(intact_ms: int, is_hidden: bool) -> None:
    throttled = [(start * MS, (start + 1) * MS, "throttled") for start in (1, 100, 200)]
    hidden = make_result(*throttled, (intact_ms * MS, (intact_ms + 1) * MS, ""))
    slow = make_result((4999 * MS, 5000 * MS, "not_found"), (5001 * MS, 5002 * MS, ""))
    _, ready, doubts = summarize([(0, 2 * MS)] * 2, [hidden, slow], SOUND)
    assert len(ready) == 2
    assert doubts == [
        "1 of 2 files may have been ready up to 5.0 s earlier: no try could tell meanwhile (throttled 3)"
    ][: 1 * is_hidden]  # fmt: skip


def test_a_budget_that_ends_is_a_doubt_and_no_loss() -> None:
    stopped = ReaderResult.from_attempts([Attempt(3, 4, 0, 0, "not_found")], "--max-ops 3 is used up")
    metrics, _, doubts = summarize([(1, 2), (1, 2)], [make_result((2, 3, "")), stopped], SOUND)
    assert (metrics["loss_rate"], doubts) == (0, ["--max-ops 3 is used up"])


# --- the suite against emulators with a known truth -----------------------------------------------


@pytest.mark.slow
@SPREAD
def test_a_delay_that_was_set_is_measured_back_within_the_resolution(lab: Lab, spread: tuple[str, ...]) -> None:
    """The emulator's delay counts from the commit, which is within the upload.

    A file is ready from the first moment at which a download that begins then is intact. The emulator judges it
    while it is under way, so the first intact one can begin before the emulator's moment, but not end before it.
    """
    specs = {
        write_profile(lab, f"d{delay_s:g}", f"[readiness]\ndelay_s = {delay_s}\n"): delay_s for delay_s in DELAYS_S
    }
    provider_options = [word for spec in specs for word in ("--provider", spec)]
    run = lab.run(SUITE, "-k", "1KB", "--cloudbench-results", "found", *provider_options, *spread)
    assert (run.status, run.counts()["passed"]) == (0, 3), run.text
    assert run.leftovers == []
    for spec, delay_s in specs.items():
        info = run.info(f"test_table_4_5[1KB-{spec}]")
        assert (info["files"], info["not_ready"], info["doubts"]) == (5, 0, [])
        assert info["reader"] == ("agent 1" if spread else "a process of its own")
        keys = ("readiness_low_s", "readiness_raw_s", "readiness_high_s", "upload_s", "download_s")
        widest_s = (info["resolution_ms"] + info["clock_bound_ms"]) / 1e3
        for low_s, raw_s, high_s, upload_s, download_s in zip(*(info[key] for key in keys), strict=True):
            assert low_s <= delay_s
            assert delay_s - upload_s - download_s <= high_s
            assert raw_s >= -upload_s - download_s - info["clock_bound_ms"] / 1e3
        earliest_s = delay_s - max(info["upload_s"]) - max(info["download_s"]) - info["clock_bound_ms"] / 1e3
        assert earliest_s <= info["readiness_max"] <= delay_s + widest_s
        assert max(info["readiness_low_s"]) > 0 if delay_s == 1 else True
        assert set(info["readiness_low_s"]) == {0} if delay_s == 0 else True
        assert info["clock_bound_ms"] > 0
        assert len(info["ops_files"]) == 1


# --- clocks ---------------------------------------------------------------------------------------

MEASURE = """
        from pytest_cloudbench.support.clock import now_ns
        from pytest_cloudbench.load.probes.readiness import measure_readiness
"""
HOUR_S = 3600


def run_with_clock(lab: Lab, clock: str, *args: str) -> tuple[FinishedRun, Mapping[str, Any]]:
    """Run one experiment in which the first agent, which uploads, has another clock."""
    lab.write(f"""{MEASURE}
        def test_it(experiment, payloads, fleet):
            def clock():
                return {clock} if fleet.index == 0 else now_ns()
            measure_readiness(experiment, payloads.random(5000), 3, clock=clock, deadline_s=20)
    """)
    run = lab.run(*FOLDER, *args)
    return run, run.info("test_it[folder:objects]")


@pytest.mark.slow
@SPREAD
def test_a_clock_that_is_an_hour_off_is_corrected_within_the_bound(lab: Lab, spread: tuple[str, ...]) -> None:
    run, info = run_with_clock(lab, f"now_ns() + {HOUR_S * 10**9}", *spread)
    assert run.counts() == {"passed": 1}, run.text
    assert info["doubts"] == []
    assert abs(info["clock_offset_ms"] - HOUR_S * 1e3) <= info["clock_bound_ms"] < HOUR_S
    assert info["readiness_low_s"] == [0] * 3
    for raw_s, *took_s in zip(*(info[key] for key in ("readiness_raw_s", "upload_s", "download_s")), strict=True):
        assert -sum(took_s) - info["clock_bound_ms"] / 1e3 <= raw_s < 20, "a read may begin before the upload"


@pytest.mark.slow
@SPREAD
def test_a_clock_that_jumps_gives_a_doubt_and_no_number(lab: Lab, spread: tuple[str, ...]) -> None:
    """The clock jumps when the first file is there. A gate then cannot be judged, and does not pass."""
    jump = "now_ns() + 400_000_000 * any(path.is_file() for path in (HERE / 'objects').rglob('s0*'))"
    run, info = run_with_clock(lab, jump, "--cloudbench-fail", "readiness_max:100", *spread)
    assert run.counts() == {"failed": 1}, run.text
    (doubt,) = info["doubts"]
    drift_ms, both_errors_ms = info["clock_drift_ms"], 2 * info["clock_bound_ms"] - info["clock_drift_ms"]
    assert abs(drift_ms - 400) <= both_errors_ms + 1e-3
    assert doubt.startswith(f"the offset between the clocks of writer and reader changed by {drift_ms:+.3f} ms")
    assert {info[f"readiness_{label}"] for label in ("p50", "max")} == {None}
    assert (info["loss_rate"], info["readiness_raw_s"]) == (0, [])
    assert [line for line in info["expectations_unmet"] if "unknown" in line and "jumped" in line]


# --- files that do not become ready ---------------------------------------------------------------


@pytest.mark.slow
@SPREAD
def test_a_file_that_never_is_intact_is_lost_at_the_deadline(lab: Lab, spread: tuple[str, ...]) -> None:
    spec = write_profile(lab, "corrupt", "[faults]\ncorrupt_rate = 1.0\n")
    lab.write(f"""{MEASURE}
        def test_it(experiment, payloads):
            measure_readiness(experiment, payloads.random(5000), 2, deadline_s=0.5).check()
    """)
    run = lab.run("--provider", spec, "--cloudbench-fail", "silent_loss_rate:0", *spread)
    assert run.counts() == {"failed": 1}, run.text
    assert run.lines_with("2 of 2 were not ready within 0.5 s")
    info = run.info(f"test_it[{spec}]")
    assert (info["loss_rate"], info["silent_loss_rate"], info["readiness_p50"], info["not_ready"]) == (1, 1, None, 2)
    assert info["corrupt_reads"] == info["tries"]["corrupt"] >= 2
    assert (info["partial_reads"], info["doubts"], run.leftovers) == (0, [], [])


@pytest.mark.slow
def test_uploads_that_fail_are_counted_and_do_not_spoil_the_others(lab: Lab) -> None:
    spec = write_profile(lab, "full", "[quota]\nbytes = 12_000\n")
    lab.write(f"""{MEASURE}
        def test_it(experiment, payloads):
            measure_readiness(experiment, payloads.random(5000), 4, deadline_s=20)
    """)
    run = lab.run("--provider", spec)
    info = run.info(f"test_it[{spec}]")
    assert (info["upload_errors"], info["loss_rate"], info["silent_loss_rate"]) == ({"quota": 2}, 0.5, 0)
    assert info["readiness_max"] is not None
    assert run.lines_with("2 of 4 uploads failed (2 quota)")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("budget", "spread"), [(("--max-ops", "7"), ()), (("--max-bytes", "24000"), ("-n", "2"))], ids=["ops", "bytes"]
)
def test_budget_is_kept_and_reported(lab: Lab, budget: tuple[str, str], spread: tuple[str, ...]) -> None:
    lab.write(f"""{MEASURE}
        def test_it(experiment, payloads):
            measure_readiness(experiment, payloads.random(5000), 4, deadline_s=20, poll_s=0.05)
    """)
    run = lab.run(*FOLDER, *budget, *spread)
    assert run.counts() == {"passed": 1}, run.text
    info = run.info("test_it[folder:objects]")
    assert any(budget[0] in doubt for doubt in info["doubts"])
    assert info["ops"] <= 7 or budget[0] == "--max-bytes"
    assert info["files"] < 4


@pytest.mark.slow
def test_a_reader_that_dies_ends_the_series(lab: Lab) -> None:
    lab.write(f"""{MEASURE}
        def test_it(experiment, payloads, fleet):
            def clock():
                if fleet.index == 1 and any((HERE / "objects").rglob("s0*")):
                    os._exit(1)
                return now_ns()
            measure_readiness(experiment, payloads.random(5000), 3, clock=clock, deadline_s=20)
    """)
    run = lab.run(*FOLDER, "-n", "3", "--max-worker-restart", "0")
    assert run.counts()["failed"] == 1, run.text
    info = run.info("test_it[folder:objects]")
    assert info["missing_agents"].keys() == {"gw1"}
    assert info["readiness_max"] is None
    assert run.leftovers == []


def test_arguments_that_make_no_sense_are_refused_in_one_line(lab: Lab) -> None:
    lab.write(f"""{MEASURE}
        @pytest.mark.parametrize("given", [dict(files=0), dict(files=1, deadline_s=0), dict(files=1, poll_s=-1)])
        def test_it(experiment, payloads, given):
            measure_readiness(experiment, payloads.random(50), **given)
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"failed": 3}
    assert len(run.lines_with("E   pytest_cloudbench")) == 0
    assert len(run.lines_with("expected files and a deadline above 0, poll_s 0 or more")) >= 3
