"""How fast does one file go up and down, by its size, and what does each transfer cost besides its bytes?

Files go one after another, so that nothing competes. ``test_parallel`` sends several in parallel, and ``test_parts``
sends one large file in parts of several sizes. docs/suites/transfer.md says what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, MIB, Parted, Threads, Verb, Wire, WireSeen

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
"""Size and number of files."""

PARALLEL = {"quick": (1, 4), "paper": (1, 2, 4, 8, 16)}
PARALLEL_BYTES = {"quick": MIB, "paper": 16 * MIB}

PARTS = {"quick": (24 * MIB, (8, 16), 1), "paper": (256 * MIB, (8, 16, 32, 64, 128), 3)}
"""Size of the file, sizes of its parts in MiB, repeats. Eight is a multiple of what services ask for, such as 4."""

PUT_COLUMNS = ("files", "service_p50", "throughput", "requests_per_op")
GET_COLUMNS = ("files", "first_byte_p50", "service_p50", "throughput", "requests_per_op")
WIRE_COLUMNS = ("wire_ratio", "extra_bytes_per_op", "extra_bytes_per_request")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One experiment per size, number of threads, or size of parts."""
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
    _transfers(experiment, payloads, size_bytes, files, 1, wire)


def test_parallel(experiment: Experiment, payloads: Payloads, threads: int, grid: str, wire: Wire | None) -> None:
    """Several transfers in parallel, each with its own connection."""
    _transfers(experiment, payloads, PARALLEL_BYTES[grid], 8 * max(PARALLEL[grid]), threads, wire)


def _transfers(
    experiment: Experiment, payloads: Payloads, size_bytes: int, files: int, threads: int, wire: Wire | None
) -> None:
    """Upload files and download them again; two entries."""
    arrival = Threads(threads)
    up = experiment.run(
        payloads.random(size_bytes), arrival=arrival, files=files, keep=True, store=False, detail=True, label="put"
    )
    assert up.files is not None
    results = {Verb.PUT: up}
    if up["ok"]:
        results[Verb.GET] = experiment.run(
            on=up.files, arrival=arrival, operation=Verb.GET, store=False, detail=True, label="get"
        )
    told = []
    for verb, result in results.items():
        seen = None
        if wire is not None and (verb is Verb.GET or experiment.provider.driver.capabilities.overwrites):
            # Connections are open by now, and the folder exists: the rest is the transfers' own traffic.
            again, seen = wire.of(
                lambda verb=verb: experiment.run(  # type: ignore[misc]  # bound at once
                    on=up.files, arrival=arrival, operation=verb, store=False, verify=False
                )
            )
            told.append(_concluded(experiment, verb, [result, again], files, size_bytes, threads, seen, wire.notes))
        else:
            told.append(_concluded(experiment, verb, [result], files, size_bytes, threads, None, ()))
    experiment.remove(up.files)
    for each in told:
        each.check()


def _concluded(
    experiment: Experiment, verb: Verb, results: Sequence[Result], files: int, size_bytes: int, threads: int,
    seen: WireSeen | None, wire_notes: Sequence[str],
) -> Result:  # fmt: skip
    first, again = results[0], results[-1]
    ok_s = first.ok_s
    rates = [size_bytes / taken_s for taken_s in ok_s if taken_s > 0]
    firsts_s = [each for each in first.ops["first_byte_s"] if each is not None]
    # In parallel: the rate of all transfers together; one after another: the rate of each transfer.
    rate = first["throughput"] if threads > 1 else median(rates) if rates else None
    metrics: dict[str, float | None] = {
        "service_p50": median(ok_s) if ok_s else None, "throughput": rate,
        "requests_per_op": first["requests_per_op"],
        "first_byte_p50": median(firsts_s) if firsts_s and verb is Verb.GET else None,
    }  # fmt: skip
    metrics["wire_bytes_per_op"], carried = _carried(first, again, seen)
    notes = list(wire_notes)
    columns: tuple[str, ...] = GET_COLUMNS if verb is Verb.GET else PUT_COLUMNS
    if seen is not None:
        metrics |= _overhead(seen, again["ok"], size_bytes, again["requests_per_op"])
        columns += WIRE_COLUMNS
        notes += [f"bytes on the wire are not known: {seen.why}"] if seen.why else []
    if first["ok"] < files:
        notes.append(f"{files - first['ok']} of {files} transfers ({verb.value}) failed and are not counted")
    return experiment.conclude(
        metrics, ok_s or [first["elapsed"] or 0.0], of=results, label=verb.value, columns=columns, notes=notes,
        stats_of=f"time of each transfer ({verb.value})" if ok_s else "elapsed time: no transfer succeeded",
        extra={
            "files": first["ok"], "size_bytes": size_bytes, "threads": threads, "operation": verb.value,
            "payload_bytes": again["ok"] * size_bytes, "wire_bytes": seen.bytes if seen else None,
            "wire_packets": seen.packets if seen else None, **carried,
        },
        spread={"service_p50": ok_s, "throughput": [] if threads > 1 else rates, "first_byte_p50": firsts_s},
    )  # fmt: skip


def _carried(first: Result, again: Result, seen: WireSeen | None) -> tuple[float | None, dict[str, Any]]:
    """What TCP carried for each transfer, and how that is known: by packets only if the kernel does not tell."""
    told = {key: first[key] for key in ("wire_by", "wire_connections", "wire_unknown")}
    if first["wire_bytes_per_op"] is not None or seen is None or seen.unique_bytes is None or not again["ops"]:
        return first["wire_bytes_per_op"], told
    return seen.unique_bytes / again["ops"], {"wire_by": "packets", "wire_connections": None, "wire_unknown": None}


def _overhead(seen: WireSeen, ok: int, size_bytes: int, requests_per_op: float | None) -> dict[str, float | None]:
    """Bytes on the wire in both directions, against those of the payload."""
    if seen.bytes is None or not ok:
        return dict.fromkeys(WIRE_COLUMNS)
    more = seen.bytes - ok * size_bytes
    return {
        "wire_ratio": seen.bytes / (ok * size_bytes), "extra_bytes_per_op": round(more / ok),
        "extra_bytes_per_request": round(more / (ok * requests_per_op)) if requests_per_op else None,
    }  # fmt: skip


def test_parts(experiment: Experiment, payloads: Payloads, part_mib: int, grid: str) -> None:
    """One large file, in parts of some size, one part after another."""
    size_bytes, _, repeats = PARTS[grid]
    driver = experiment.provider.driver
    if not isinstance(driver, Parted):
        pytest.skip(f"{experiment.provider.spec}: this driver cannot choose the size of parts")
    declared = experiment.provider.driver.capabilities
    step_bytes, most_bytes = declared.part_step_bytes, declared.max_part_bytes
    part_bytes = part_mib * MIB // step_bytes * step_bytes
    if most_bytes is not None and part_bytes > most_bytes:
        pytest.skip(f"{experiment.provider.spec}: parts have at most {most_bytes / MIB:g} MiB")
    with _parts_of(driver, part_bytes):
        result = experiment.run(
            payloads.random(size_bytes), arrival=Threads(1), files=repeats, store=False, detail=True, label="parts"
        )
    ok_s = result.ok_s
    rates = [size_bytes / taken_s for taken_s in ok_s]
    metrics: dict[str, Any] = {
        "service_p50": median(ok_s) if ok_s else None, "throughput": median(rates) if rates else None,
        "requests_per_op": result["requests_per_op"],
    }  # fmt: skip
    experiment.conclude(
        metrics, ok_s or [result["elapsed"] or 0.0], columns=PUT_COLUMNS,
        stats_of="time of an upload in parts" if ok_s else "elapsed time: no upload succeeded",
        extra={"files": result["ok"], "size_bytes": size_bytes, "part_bytes": part_bytes},
        notes=[f"parts have {part_bytes:,} bytes, a multiple of {step_bytes:,}"] if part_bytes < part_mib * MIB else [],
        spread={"service_p50": ok_s, "throughput": rates},
    ).check()  # fmt: skip


@contextmanager
def _parts_of(driver: Parted, part_bytes: int) -> Iterator[None]:
    """Make a driver upload in parts of that size, even files that it would send in one request."""
    former = driver.part_bytes, driver.multipart_bytes
    driver.part_bytes = driver.multipart_bytes = part_bytes
    try:
        yield
    finally:
        driver.part_bytes, driver.multipart_bytes = former
