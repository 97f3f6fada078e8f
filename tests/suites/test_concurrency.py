"""The knee of a provider that works on a known number of requests at once."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FOLDER, Lab
from tests.truths import Truths

from .harness import conclusion, profile, run_suite

SLOW = {"median_s": 0.04}


@pytest.mark.slow
def test_knee_is_at_the_number_of_provider_slots(lab: Lab, truths: Truths) -> None:
    """The knee is exact to one level: between two requests of a client its slot is free for a waiting thread."""
    latency_s, slots = 0.06, 5
    run = run_suite(lab, "concurrency", *profile(lab, latency={"median_s": latency_s}, capacity={"slots": slots}))
    knees = {test: conclusion(run, "knee", test) for test in ("test_upload", "test_download")}
    if not truths.judged(run, *knees.values()):
        return
    for test, knee in knees.items():
        own_s = knee["client_cpu_s"] / knee["ops"]
        assert slots <= knee["knee_threads"] <= 2 * slots
        assert knee["knee_from"] <= knee["knee_threads"] <= knee["knee_to"]
        truths.assert_time(knee["best_total"], 50 * latency_s / slots, 0.25, 50 * own_s)
        one, many = conclusion(run, "1 threads", test), conclusion(run, "25 threads", test)
        assert one["elapsed"] >= 50 * latency_s
        truths.assert_time(one["elapsed"], 50 * latency_s, 0.25, 50 * own_s)
        assert many["mean_s"] > 2 * one["mean_s"], "thesis 4.2.2: the average time rises with the threads"


@pytest.mark.slow
def test_without_a_limit_more_threads_are_always_better(lab: Lab, truths: Truths) -> None:
    run = run_suite(lab, "concurrency::test_upload", *profile(lab, latency=SLOW), "-n", "3")
    knee = conclusion(run, "knee")
    assert knee["agents"] == 3
    if truths.judged(run, knee):
        # 50 threads need half of the service's time that 25 need, unless this machine's own work takes as long.
        assert knee["knee_threads"] in (25, 50)


@pytest.mark.slow
def test_level_with_refused_files_is_left_out_with_a_note(lab: Lab, truths: Truths) -> None:
    limits = {"max_in_flight": 7, "retry_after_s": 1, "reason": '"too_many_requests"'}
    run = run_suite(lab, "concurrency::test_upload", *profile(lab, latency=SLOW, throttle=limits))
    knee = conclusion(run, "knee")
    if truths.judged(run, knee):
        assert knee["knee_threads"] == 5
    assert sorted(knee["totals_s"]) == ["1", "5"]
    assert run.lines_with("note: 10 threads are left out: ")
    refused = conclusion(run, "25 threads")
    assert (refused["throttled"] > 0, refused["elapsed"]) == (True, None), "refused files take no time"
    assert conclusion(run, "5 threads")["elapsed"] > 0


SINGLE_FAILURES = """
    import threading, time
    from pytest_cloudbench.drivers.folder import FolderDriver
    from pytest_cloudbench.model import CloudError, ErrorKind

    put, folders, slots = FolderDriver.put, [], threading.Semaphore(SLOTS)

    def put_or_fail(self, path, content):
        if content.size_bytes != 102_400:
            return put(self, path, content)
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders.append(folder)
            if len(folders) in FAILING:
                raise CloudError(ErrorKind.SERVER, "put", path)
        with slots:
            time.sleep(0.04)  # the time of a put, which the suite measures
        return put(self, path, content)

    FolderDriver.put = put_or_fail
"""
"""A store that works on some files at a time, and fails once in each of some runs. Two runs make a level."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "failing", "left_out"),
    [
        pytest.param(5, (3,), 5, id="the knee itself"),
        pytest.param(100, (7, 9), 25, id="all levels above"),
        pytest.param(5, (), None, id="none"),
    ],
)
def test_a_level_with_a_single_failure_may_be_the_knee(
    lab: Lab, truths: Truths, slots: int, failing: tuple[int, ...], left_out: int | None
) -> None:
    lab.write(SINGLE_FAILURES.replace("SLOTS", str(slots)).replace("FAILING", str(failing)), "conftest.py")
    run = run_suite(lab, "concurrency::test_upload", ".", *FOLDER)
    knee = conclusion(run, "knee")
    if left_out is None:
        if truths.judged(run, knee):
            assert knee["knee_threads"] in (5, 10)
        return
    assert knee["knee_threads"] is None, knee["totals_s"]
    assert run.lines_with(f"note: {left_out} threads are left out: 1 of 100 files did not get through")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "label"),
    [("concurrency::test_upload", "knee"), ("constancy::test_upload", "category"), ("filesize::test_upload", "line")],
)
def test_an_entry_without_any_time_says_so(lab: Lab, suite: str, label: str) -> None:
    run = run_suite(lab, suite, *profile(lab, faults={"error_rate": 1.0}))
    assert conclusion(run, label)["stats_of"].startswith("nothing: ")
    assert not conclusion(run_suite(lab, suite, *FOLDER), label)["stats_of"].startswith("nothing: ")


@pytest.mark.slow
def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "concurrency", *FOLDER)
    assert run.counts() == {"passed": 2}, run.text
    assert not [path for path in (lab.folder / "objects").rglob("*") if path.is_file()]
