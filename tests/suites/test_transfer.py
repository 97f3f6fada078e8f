"""Known latency and bandwidth are found. Requests, parts and bytes on the wire are counted."""

from __future__ import annotations

import pytest

from pytest_cloudbench import Curve, Result, WireSeen
from pytest_cloudbench.net.capture import CaptureUnavailable, check
from suites.transfer import CLOUDBENCH_SUITE
from suites.transfer.test_transfer import WIRE_COLUMNS, compute_overhead
from tests.fleet.harness import FOLDER, Lab
from tests.truths import Truths

from .harness import conclusion, profile, run_suite

MIB = 1024 * 1024


@pytest.mark.slow
def test_latency_and_bandwidth_are_found_again(lab: Lab, truths: Truths) -> None:
    """A small file takes the latency, a large one its bytes over the bandwidth as well."""
    latency = {"median_s": 0.05}
    band = {"up_bytes_per_s": 4 * MIB, "down_bytes_per_s": 8 * MIB}
    run = run_suite(
        lab, "transfer::test_sizes", *profile(lab, latency=latency, bandwidth=band), "--transfer-largest", str(MIB)
    )
    infos = {
        (size, verb): conclusion(run, verb, size)
        for size in ("1KiB", "1MiB") for verb in ("put", "get")
    }  # fmt: skip
    for (size, verb), info in infos.items():
        least_s = 0.05 + (0 if size == "1KiB" else 0.25 if verb == "put" else 0.125)
        assert info["service_p50"] >= least_s * 0.98, (size, verb)
        assert info["requests_per_op"] == 1
        assert info["throughput"] <= info["size_bytes"] / least_s * 1.02
    assert infos["1KiB", "get"]["first_byte_p50"] >= 0.049
    assert infos["1KiB", "put"]["first_byte_p50"] is None, "an upload has none"
    if truths.judged(run, *infos.values()):
        own_s = infos["1MiB", "put"]["client_cpu_s"] / infos["1MiB", "put"]["ops"]
        truths.assert_time(infos["1MiB", "put"]["service_p50"], 0.3, 0.2, own_s)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("emulated:ideal", {8: 3, 16: 2}),
        ("emulated:gdrive?profile=ideal", {8: 3 + 2, 16: 2 + 2}),  # and one each for name and session
        ("emulated:onedrive?profile=ideal", {8: 4 + 1, 16: 2 + 1}),  # multiples of 320 KiB; and one for the session
    ],
)
def test_parts_are_counted(lab: Lab, spec: str, expected: dict[int, int]) -> None:
    """24 MiB are three requests in parts of 8 MiB, two in parts of 16, and some more for the service."""
    run = run_suite(lab, "transfer::test_parts", "--provider", spec)
    assert run.counts() == {"passed": 2}, run.text
    counts = {
        entry["params"]["part_mib"]: entry["extra_info"]["requests_per_op"] for entry in run.document["benchmarks"]
    }
    assert counts == expected
    parts = {8: 4 if "onedrive" in spec else 3, 16: 2}
    curves = [figure for figure in CLOUDBENCH_SUITE.figures if isinstance(figure, Curve)]
    [curve] = [figure for figure in curves if figure.test == "test_parts"]
    drawn = {entry["params"]["part_mib"]: entry["extra_info"].get(curve.x) for entry in run.document["benchmarks"]}
    assert drawn == parts
    notes = run.lines_with("note: parts have 8,192,000 bytes, a multiple of 327,680")
    assert bool(notes) == ("onedrive" in spec)


@pytest.mark.slow
def test_uploads_in_parts_that_fail_are_noted(lab: Lab) -> None:
    run = run_suite(lab, "transfer::test_parts", *profile(lab, faults={"error_rate": 1.0}))
    assert run.lines_with("note: 1 of 1 uploads failed and are not counted"), run.text


@pytest.mark.slow
def test_parts_above_the_limit_of_a_service_are_skipped(lab: Lab) -> None:
    onedrive = ("--provider", "emulated:onedrive?profile=ideal", "--grid", "paper", "-k", "test_parts and 64MiB")
    run = run_suite(lab, "transfer", *onedrive, "-rs")
    assert run.counts()["skipped"] == 1, run.text
    assert run.lines_with("parts have at most 59.6875 MiB")


@pytest.mark.slow
def test_a_folder_has_no_parts_and_no_wire(lab: Lab) -> None:
    run = run_suite(lab, "transfer", *FOLDER, "--transfer-largest", "70000", "--cloudbench-capture")
    assert run.counts() == {"passed": 4, "skipped": 2}, run.text
    assert run.lines_with("this driver cannot choose the size of parts")
    assert run.lines_with("note: bytes on the wire are not known: name the interface")
    info = conclusion(run, "put", "test_sizes[64KiB")
    assert (info["files"], info["wire_ratio"], info["requests_per_op"]) == (8, None, 0)


@pytest.mark.slow
def test_bytes_on_the_wire_are_those_of_the_file_and_a_little_more(lab: Lab) -> None:
    try:
        check("lo")
    except CaptureUnavailable as error:
        pytest.skip(str(error))
    ideal = ("--provider", "emulated:ideal", "--transfer-largest", str(MIB), "-k", "64KiB or 1MiB")
    run = run_suite(lab, "transfer::test_sizes", *ideal, "--cloudbench-capture")
    assert run.status == 0, run.text
    for entry in run.document["benchmarks"]:
        info = entry["extra_info"]
        assert info["wire_bytes"] > info["payload_bytes"], "headers, TLS records and answers"
        assert 1 < info["wire_ratio"] < 1.3
        assert info["size_bytes"] < info["wire_bytes_per_op"] < info["wire_bytes"] / info["files"]
        assert 200 < info["extra_bytes_per_request"] < 0.3 * info["size_bytes"]
    assert not list(lab.folder.rglob("*.pcapng")), "they are not kept"


def test_parallel_transfers_that_all_fail_have_no_rate(lab: Lab) -> None:
    run = run_suite(lab, "transfer::test_parallel", *profile(lab, faults={"error_rate": 1.0}))
    infos = [entry["extra_info"] for entry in run.document["benchmarks"]]
    assert {info["threads"] for info in infos} >= {1, 4}, run.text
    assert [info["throughput"] for info in infos] == [None] * len(infos)


def test_bytes_of_failed_transfers_leave_the_overhead_unknown() -> None:
    seen = WireSeen(bytes=3300, packets=9, unique_bytes=None, why="")
    info = {"ops": 3, "ok": 3, "requests_per_op": 1}
    assert compute_overhead(seen, Result(info), 1000) == (
        {"wire_ratio": 1.1, "extra_bytes_per_op": 100, "extra_bytes_per_request": 100}, ""
    )  # fmt: skip
    assert compute_overhead(seen, Result({**info, "ok": 2}), 1000) == (
        dict.fromkeys(WIRE_COLUMNS), "1 of 3 captured transfers failed, and their bytes cannot be told from the others"
    )  # fmt: skip
