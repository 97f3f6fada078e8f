"""How fast does one file go up and down, by its size, and what does each transfer cost besides its bytes?

Files go one after another, so that nothing competes. ``test_parallel`` sends several in parallel, and ``test_parts``
sends one large file in parts of several sizes. docs/suites/transfer.md explains the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, MIB, Parted, Threads, Verb, Wire, WireSeen, require_success

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_cloudbench import Experiment, Payloads, Result

SIZES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "quick": {"1KiB": (KIB, 8), "64KiB": (64 * KIB, 8), "1MiB": (MIB, 6), "8MiB": (8 * MIB, 3)},
    "paper": {
        "1KiB": (KIB, 50), "16KiB": (16 * KIB, 50), "256KiB": (256 * KIB, 30), "1MiB": (MIB, 30), "4MiB": (4 * MIB, 20),
        "16MiB": (16 * MIB, 10), "64MiB": (64 * MIB, 5), "256MiB": (256 * MIB, 3), "1GiB": (1024 * MIB, 2),
    },
}  # fmt: skip
"""The size and the number of files, by their name in parameters."""

PARALLEL = {"quick": (1, 4), "paper": (1, 2, 4, 8, 16)}
PARALLEL_BYTES = {"quick": MIB, "paper": 16 * MIB}

PARTS = {"quick": (24 * MIB, (8, 16), 1), "paper": (256 * MIB, (8, 16, 32, 64, 128), 3)}
"""Size of the file, sizes of its parts in MiB, repeats. Eight is a multiple of the steps of services, such as 4."""

PUT_COLUMNS = ("files", "service_p50", "throughput", "requests_per_op")
GET_COLUMNS = ("files", "first_byte_p50", "service_p50", "throughput", "requests_per_op")
WIRE_COLUMNS = ("wire_ratio", "extra_bytes_per_op", "extra_bytes_per_request")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one experiment for each size, number of threads, or size of parts."""
    option = metafunc.config.option
    grid, largest = option.cloudbench_grid, option.cloudbench_transfer_largest
    if "size" in metafunc.fixturenames:
        sizes = [name for name, (size, _) in SIZES[grid].items() if largest is None or size <= largest]
        metafunc.parametrize("size", sizes)
    if "threads" in metafunc.fixturenames:
        metafunc.parametrize("threads", PARALLEL[grid])
    if "part_mib" in metafunc.fixturenames:
        metafunc.parametrize("part_mib", PARTS[grid][1], ids=lambda part_mib: f"{part_mib}MiB")


@pytest.fixture
def wire(experiment: Experiment, pytestconfig: pytest.Config) -> Wire | None:
    """The counter of bytes on the wire, if it was requested."""
    interface: str | None = pytestconfig.option.cloudbench_capture
    return None if interface is None else Wire(experiment, interface)


def test_sizes(experiment: Experiment, payloads: Payloads, size: str, grid: str, wire: Wire | None) -> None:
    """Uploads and downloads one after another, by size."""
    size_bytes, files = SIZES[grid][size]
    _measure_transfers(experiment, payloads, size_bytes, files, 1, wire)


def test_parallel(experiment: Experiment, payloads: Payloads, threads: int, grid: str, wire: Wire | None) -> None:
    """Several transfers in parallel, each with its own connection."""
    _measure_transfers(experiment, payloads, PARALLEL_BYTES[grid], 8 * max(PARALLEL[grid]), threads, wire)


def _measure_transfers(
    experiment: Experiment, payloads: Payloads, size_bytes: int, files: int, threads: int, wire: Wire | None
) -> None:
    """Upload files and download them again, and store an entry for each direction."""
    arrival = Threads(threads)
    upload = experiment.run(
        payloads.random(size_bytes), arrival=arrival, files=files, keep=True, store=False, detail=True, label="put"
    )
    assert upload.files is not None
    results = {Verb.PUT: upload}
    if upload["ok"]:
        results[Verb.GET] = experiment.run(
            on=upload.files, arrival=arrival, operation=Verb.GET, store=False, detail=True, label="get"
        )
    conclusions = []
    for verb, result in results.items():
        wire_seen = None
        if wire is not None and (verb is Verb.GET or experiment.provider.driver.capabilities.overwrites):
            # Connections are open by now and the folder exists, so all traffic belongs to the transfers.
            repeated, wire_seen = wire.of(
                lambda verb=verb: experiment.run(  # type: ignore[misc]  # bound at once
                    on=upload.files, arrival=arrival, operation=verb, store=False, verify=False
                )
            )
            conclusions.append(
                _conclude_direction(
                    experiment, verb, [result, repeated], files, size_bytes, threads, wire_seen, wire.notes
                )
            )
        else:
            conclusions.append(_conclude_direction(experiment, verb, [result], files, size_bytes, threads, None, ()))
    experiment.remove(upload.files)
    for result in results.values():
        require_success(result)
    for conclusion in conclusions:
        conclusion.check()


def _conclude_direction(
    experiment: Experiment, verb: Verb, results: Sequence[Result], files: int, size_bytes: int, threads: int,
    wire_seen: WireSeen | None, wire_notes: Sequence[str],
) -> Result:  # fmt: skip
    first, repeated = results[0], results[-1]
    ok_s = first.ok_s
    rates = [size_bytes / taken_s for taken_s in ok_s if taken_s > 0]
    firsts_s = [value for value in first.ops["first_byte_s"] if value is not None]
    rate = None
    if rates:  # in parallel that of all transfers together, and otherwise that of each transfer
        rate = first["throughput"] if threads > 1 else median(rates)
    metrics: dict[str, float | None] = {
        "service_p50": median(ok_s) if ok_s else None, "throughput": rate,
        "requests_per_op": first["requests_per_op"],
        "first_byte_p50": median(firsts_s) if firsts_s and verb is Verb.GET else None,
    }  # fmt: skip
    metrics["wire_bytes_per_op"], carried = _count_carried(first, repeated, wire_seen)
    notes = list(wire_notes)
    columns: tuple[str, ...] = GET_COLUMNS if verb is Verb.GET else PUT_COLUMNS
    if wire_seen is not None:
        overhead, why_unknown = compute_overhead(wire_seen, repeated, size_bytes)
        metrics |= overhead
        columns += WIRE_COLUMNS
        notes += [f"bytes on the wire are not known: {why_unknown}"] if why_unknown else []
    notes += _note_failed(first, files, f"transfers ({verb.value})")
    return experiment.conclude(
        metrics, ok_s or [first["elapsed"] or 0.0], of=results, label=verb.value, columns=columns, notes=notes,
        stats_of=f"time of each transfer ({verb.value})" if ok_s else "elapsed time: no transfer succeeded",
        extra={
            "files": first["ok"], "size_bytes": size_bytes, "threads": threads, "operation": verb.value,
            "payload_bytes": repeated["ok"] * size_bytes, "wire_bytes": wire_seen.bytes if wire_seen else None,
            "wire_packets": wire_seen.packets if wire_seen else None, **carried,
        },
        spread={"service_p50": ok_s, "throughput": [] if threads > 1 else rates, "first_byte_p50": firsts_s},
    )  # fmt: skip


def _note_failed(result: Result, files: int, what: str) -> list[str]:
    """Return a remark if some files were not transferred: the numbers are those of the others."""
    failed = files - result["ok"]
    return [f"{failed} of {files} {what} failed and are not counted"] if failed else []


def _count_carried(first: Result, repeated: Result, wire_seen: WireSeen | None) -> tuple[float | None, dict[str, Any]]:
    """Return the bytes that TCP carried for each transfer, and their source: packets if the kernel does not count."""
    known_counts = {key: first[key] for key in ("wire_by", "wire_connections", "wire_unknown")}
    if (
        first["wire_bytes_per_op"] is not None
        or wire_seen is None
        or wire_seen.unique_bytes is None
        or not repeated["ops"]
    ):
        return first["wire_bytes_per_op"], known_counts
    return wire_seen.unique_bytes / repeated["ops"], {
        "wire_by": "packets",
        "wire_connections": None,
        "wire_unknown": None,
    }


def compute_overhead(wire_seen: WireSeen, result: Result, size_bytes: int) -> tuple[dict[str, float | None], str]:
    """Compare bytes on the wire, in both directions, with those of the payload. Return also why that is unknown."""
    transfers, requests_per_op = result["ok"], result["requests_per_op"]
    if wire_seen.bytes is None or not transfers:
        return dict.fromkeys(WIRE_COLUMNS), wire_seen.why or "no captured transfer succeeded"
    if failed := result["ops"] - transfers:
        why = f"{failed} of {result['ops']} captured transfers failed, and their bytes cannot be told from the others"
        return dict.fromkeys(WIRE_COLUMNS), why
    extra_bytes = wire_seen.bytes - transfers * size_bytes
    return {
        "wire_ratio": wire_seen.bytes / (transfers * size_bytes), "extra_bytes_per_op": round(extra_bytes / transfers),
        "extra_bytes_per_request": round(extra_bytes / (transfers * requests_per_op)) if requests_per_op else None,
    }, wire_seen.why  # fmt: skip


def test_parts(experiment: Experiment, payloads: Payloads, part_mib: int, grid: str) -> None:
    """One large file in parts of one size, one part after another."""
    size_bytes, _, repeats = PARTS[grid]
    driver = experiment.provider.driver
    if not isinstance(driver, Parted):
        pytest.skip(f"{experiment.provider.spec}: this driver cannot choose the size of parts")
    declared = experiment.provider.driver.capabilities
    step_bytes, most_bytes = declared.part_step_bytes, declared.max_part_bytes
    part_bytes = part_mib * MIB // step_bytes * step_bytes
    if most_bytes is not None and part_bytes > most_bytes:
        pytest.skip(f"{experiment.provider.spec}: parts have at most {most_bytes / MIB:g} MiB")
    with _set_part_size(driver, part_bytes):
        result = experiment.run(
            payloads.random(size_bytes), arrival=Threads(1), files=repeats, store=False, detail=True, label="parts"
        )
    ok_s = result.ok_s
    rates = [size_bytes / taken_s for taken_s in ok_s]
    metrics: dict[str, Any] = {
        "service_p50": median(ok_s) if ok_s else None, "throughput": median(rates) if rates else None,
        "requests_per_op": result["requests_per_op"],
    }  # fmt: skip
    notes = _note_failed(result, repeats, "uploads")
    if part_bytes < part_mib * MIB:
        notes.append(f"parts have {part_bytes:,} bytes, a multiple of {step_bytes:,}")
    conclusion = experiment.conclude(
        metrics, ok_s or [result["elapsed"] or 0.0], columns=PUT_COLUMNS,
        stats_of="time of an upload in parts" if ok_s else "elapsed time: no upload succeeded",
        extra={"files": result["ok"], "size_bytes": size_bytes, "part_bytes": part_bytes,
               "parts": -(-size_bytes // part_bytes)},
        notes=notes,
        spread={"service_p50": ok_s, "throughput": rates},
    )  # fmt: skip
    require_success(result)
    conclusion.check()


@contextmanager
def _set_part_size(driver: Parted, part_bytes: int) -> Iterator[None]:
    """Make a driver upload in parts of this size, even files that it would send in one request."""
    former = driver.part_bytes, driver.multipart_bytes
    driver.part_bytes = driver.multipart_bytes = part_bytes
    try:
        yield
    finally:
        driver.part_bytes, driver.multipart_bytes = former
