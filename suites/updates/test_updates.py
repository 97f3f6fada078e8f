"""How much more does a sync client send than its user changed? (paper 002, sections 3.2, 3.3 and 4.2: traffic overuse)

TUE is wire bytes, both ways, over the bytes that the user changed (the paper's alpha). ``--client`` names the client.
Streams of updates are written into a file in place, each at its own time, whatever the client does meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, MIB, PERCENTILES, Act, Content, LiteralContent, Played, percentile, play_edits

if TYPE_CHECKING:
    from pytest_cloudbench import Edit, LabItem, Payloads, Window

SOURCE = "Efficient Batched Synchronization in Dropbox-like Cloud Storage Services (UDS), 2013, Dropbox 0.7.1"

TABLE_1 = {
    "1 B": (38200, 4.0), "1 KB": (40.1, 4.0), "10 KB": (4.63, 4.1), "100 KB": (1.528, 4.8), "1 MB": (1.22, 9.2),
    "10 MB": (1.149, 54.7), "100 MB": (1.1266, 496.3),
}  # fmt: skip
"""Alpha and the sync delay in seconds by the size of the new file."""
SIZES = {"quick": ("1 B", "100 KB", "1 MB"), "paper": tuple(TABLE_1)}
REPEATS = {"quick": 1, "paper": 3}

APPENDS = {
    "quick": ((0.1, 8), (1.0, 8)),
    "paper": tuple((interval_s, KIB) for interval_s in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)),
}
"""Seconds between appends of one byte, and their number, for figures 4 to 7, 9 and (at one second) 12."""
PUBLISHED_APPENDS = {1.0: "1.2 MB and 2 MB of traffic on two machines for 1 KB (Figures 4, 5)"}

DELAYS = {"quick": ((1, 3),), "paper": ((1, KIB), (100 * KIB, 50))}
"""Bytes of an append, and the number of appends: for figures 8 and 9, and for 11 whose sizes are not printed."""
REST_S = {"quick": 0.5, "paper": 5.0}
PUBLISHED_START_UPS = {"start_up_p50_7200_rpm_s": 0.2, "start_up_p50_5400_rpm_s": 0.4, "start_up_max_s": 0.96}
PUBLISHED_DELAYS = {"sync_delay_1_to_4_s_share": 1 / 3, "sync_delay_4_to_7_s_share": 1 / 3}
"""Figure 8 has medians by the disk and the longest of all. Figure 9 has shares of all appends."""

BLOCKS_KB = {"quick": (100,), "paper": (50, 60, 70, 80, 90, 100)}
BLOCKS_UNTIL = {"quick": 300 * KIB, "paper": 5 * MIB}

DOWNLOADS_KBIT = {"quick": (128, 1024), "paper": (40, 80, 120, 160, 200, 400, 800)}
DOWNLOAD_BYTES = {"quick": 48 * KIB, "paper": 5 * MIB}
PUBLISHED_DOWNLOADS = {80: "75 MB of traffic for 5 MB (Figure 16)"}

USERS = {"quick": (100 * KIB, 4.0, 1.0), "paper": (MIB, 3600.0, 10.0)}
"""Size of the document, duration, and the longest time between two edits of one user."""

IDLE_S = 0.5
_LARGE_SHARE = 0.1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the ``quick`` grid, or with the paper's own."""
    grid = metafunc.config.option.cloudbench_grid
    names = metafunc.fixturenames
    if "size" in names:
        metafunc.parametrize("size", SIZES[grid], ids=lambda size: size.replace(" ", ""))
    elif "interval_s" in names:
        ids = [f"{interval_s:g}s-{count}" for interval_s, count in APPENDS[grid]]
        metafunc.parametrize("interval_s, count", APPENDS[grid], ids=ids)
    elif "append_bytes" in names:
        ids = [f"{size // KIB}KB-{count}" if size >= KIB else f"{size}B-{count}" for size, count in DELAYS[grid]]
        metafunc.parametrize("append_bytes, count", DELAYS[grid], ids=ids)
    elif "block_kb" in names:
        metafunc.parametrize("block_kb", BLOCKS_KB[grid], ids=lambda size: f"{size}KB")
    elif "rate_kbit_per_s" in names:
        metafunc.parametrize("rate_kbit_per_s", DOWNLOADS_KBIT[grid], ids=lambda rate: f"{rate}kbit")


def parse_size(size: str) -> int:
    """Return a printed size in bytes. The paper does not define 1 KB, which is taken as 1024 bytes here."""
    number, _, unit = size.partition(" ")
    return int(number) * {"B": 1, "KB": KIB, "MB": MIB}[unit]


def test_table_1(lab: LabItem, payloads: Payloads, grid: str, size: str) -> None:
    """Table 1: traffic, TUE and sync delay of a new file: a JPEG image, except for the file of 1 byte."""
    size_bytes = parse_size(size)
    payload = payloads.random(size_bytes) if size_bytes == 1 else payloads.jpeg(size_bytes)
    name = size.replace(" ", "")
    creations = [lab.new_file(name, payload.content(0, number), label="new")[1] for number in range(REPEATS[grid])]
    idle, *windows = lab.watch([lab.rest(IDLE_S), *creations])
    delays_s = [window.sync_delay_s for window in windows if window.sync_delay_s is not None]
    if len(delays_s) < len(windows):
        pytest.skip("inconclusive: the file arrived, but no payload was seen")
    alpha, delay_s = TABLE_1[size]
    mean_s = sum(delays_s) / len(delays_s)
    extra = {**sum_windows(idle, windows), "sync_delay_s": mean_s, "uds_tue": alpha, "uds_delay_s": delay_s}
    extra |= {"files": len(windows), "kb_per_file": extra["traffic_kb"] / len(windows)}
    result = lab.conclude(
        {"tue": extra["tue"], "sync_delay": mean_s},
        delays_s,
        stats_of="sync delay: from the new file to the last payload before the server had it",
        columns=("files", "kb_per_file", "tue", "uds_tue", "sync_delay_s", "uds_delay_s"),
        extra=extra,
        published={"source": f"{SOURCE}, Table 1", "tue": alpha, "sync_delay_s": delay_s},
        doubts=lab.doubts(),
        notes=note_idle_traffic(extra),
    )
    result.check()


def test_appends(lab: LabItem, payloads: Payloads, interval_s: float, count: int) -> None:
    """Figures 4 to 7, 9 and 12: random bytes are appended one by one to an empty file."""
    stream = payloads.updates("byte_appends", interval_s=interval_s, until_bytes=count)
    measure_stream(lab, stream, "appends", "Figures 4 to 7 and 12", PUBLISHED_APPENDS.get(interval_s))


def test_delays(lab: LabItem, payloads: Payloads, grid: str, append_bytes: int, count: int) -> None:
    """Figures 8, 9 and 11: random bytes are appended, each time once the previous ones are in sync and all is quiet."""
    path, created = lab.new_file("delays", LiteralContent(b""))
    size, is_figure_8 = count * append_bytes, append_bytes == 1
    acts = [created]
    for _, edit in payloads.updates("byte_appends", block_bytes=append_bytes, until_bytes=size):
        acts += [lab.rest(REST_S[grid]), Act("append", partial(append_edit, path, edit))]
    _, *windows = lab.watch(acts)
    rests, appends = windows[::2], windows[1::2]
    start_ups_s = [window.start_up_s for window in appends if window.start_up_s is not None]
    delays_s = [window.sync_delay_s for window in appends if window.sync_delay_s is not None]
    if min(len(start_ups_s), len(delays_s)) < count:
        pytest.skip("inconclusive: the append arrived, but no payload was seen")
    figures = {**describe_percentiles("start_up", start_ups_s), **describe_percentiles("sync_delay", delays_s)}
    note = f"{lab.spec}: it does not watch its folder; its start-up time counts from when it is run"
    published = {"source": f"{SOURCE}, Figures 8 and 9", **PUBLISHED_START_UPS, **PUBLISHED_DELAYS}
    result = lab.conclude(
        figures,
        start_ups_s,
        stats_of="from an append to the first payload that the client sent",
        columns=("appends", "start_up_p50", "start_up_max", "uds", "sync_delay_p50", "sync_delay_max", "sync_events"),
        extra={
            "appends": count, "file_bytes": size, "start_ups_s": start_ups_s, "sync_delays_s": delays_s,
            "sync_events": sum(len(window.events_s) for window in appends),
            "uds": "200, 400 ms" if is_figure_8 else "drawn only",
            "sync_delay_1_to_4_s_share": share_within(delays_s, 1, 4),
            "sync_delay_4_to_7_s_share": share_within(delays_s, 4, 7),
        },
        published=published if is_figure_8 else {},
        doubts=[*doubt_own_traffic(rests, figures["start_up_p50"]), *lab.doubts()],
        notes=[] if lab.facts.watches_folder else [note],
    )  # fmt: skip
    result.check()


def test_blocks(lab: LabItem, payloads: Payloads, grid: str, block_kb: int) -> None:
    """Figure 10: a block of random bytes is appended every second."""
    until_bytes = BLOCKS_UNTIL[grid]
    stream = payloads.updates("block_appends", interval_s=1.0, block_bytes=block_kb * KIB, until_bytes=until_bytes)
    measure_stream(lab, stream, "blocks", "Figure 10", None)


def test_download(lab: LabItem, payloads: Payloads, grid: str, rate_kbit_per_s: int) -> None:
    """Figures 16 and 17: a file arrives from elsewhere at a steady rate, and is written as it comes."""
    rate, size = rate_kbit_per_s * 1000 / 8, DOWNLOAD_BYTES[grid]
    stream = payloads.updates("http_download", size_bytes=size, rate_bytes_per_s=rate)
    measure_stream(lab, stream, "download", "Figures 16 and 17", PUBLISHED_DOWNLOADS.get(rate_kbit_per_s))


def test_two_users(lab: LabItem, payloads: Payloads, grid: str) -> None:
    """Section 4.2: two users edit one document. Here both sit at the client under test."""
    size, duration_s, most_s = USERS[grid]
    stream = payloads.updates("two_users", duration_s=duration_s, max_interval_s=most_s)
    document = payloads.text(size).content(0, 0)
    measure_stream(lab, stream, "users", "section 4.2", "130 MB of traffic for a file of 1 MB", document)


def measure_stream(
    lab: LabItem, stream: Iterator[tuple[float, Edit]], name: str, figure: str, published: str | None,
    start: Content | None = None,
) -> None:  # fmt: skip
    """Measure one stream of updates, and store it as an entry."""
    played = Played()
    path, created = lab.new_file(name, start or LiteralContent(b""))
    after = None if lab.facts.watches_folder else lab.client.after_change

    def work() -> int:
        nonlocal played
        played = play_edits(stream, path, start=start, after=after)
        return played.changed_bytes

    _, idle, window = lab.watch([created, lab.rest(IDLE_S), Act(name, work)])
    extra = {**sum_windows(idle, [window]), **describe_stream(window, played), "uds": published or "drawn only"}
    if after is not None:  # the suite ran the client after each update, so events say nothing about the client
        extra["sync_events"] = None
    late = f"{played.late} of {played.updates} updates were written late"
    note = f"{lab.spec}: it does not watch its folder and was run after each update; {late}"
    result = lab.conclude(
        {"tue": extra["tue"], "sync_delay": window.sync_delay_s},
        [window.duration_s],
        stats_of="from the first update until the client was in sync and quiet",
        columns=("updates", "sync_events", "traffic_kb", "tue", "bytes_per_update", "sync_delay_s", "cpu_share"),
        extra=extra,
        published={"source": f"{SOURCE}, {figure}", "traffic": published} if published else {},
        doubts=[*([late] if after is None and played.late > _LARGE_SHARE * played.updates else []), *lab.doubts()],
        notes=[*([note] if after else []), *note_idle_traffic(extra)],
    )
    result.check()


def append_edit(path: Path, edit: Edit) -> int:
    """Write one edit, and return the number of changed bytes."""
    return play_edits([(0.0, edit)], path).changed_bytes


# --- results ---


def sum_windows(idle: Window, windows: Sequence[Window]) -> dict[str, Any]:
    """Return the traffic and CPU time of some windows together. ``watch`` guarantees that sizes are known."""
    uploaded = sum(window.up_bytes or 0 for window in windows)
    downloaded = sum(window.down_bytes or 0 for window in windows)
    changed, lasted_s = sum(window.changed_bytes for window in windows), sum(window.duration_s for window in windows)
    known_s = [window.cpu_s for window in windows if window.cpu_s is not None]
    cpu_s = sum(known_s) if len(known_s) == len(windows) else None
    return {
        "changed_bytes": changed, "up_bytes": uploaded, "down_bytes": downloaded,
        "traffic_bytes": uploaded + downloaded, "traffic_kb": (uploaded + downloaded) / 1e3,
        "tue": (uploaded + downloaded) / changed, "connections": sum(window.syns for window in windows),
        "cpu_s": cpu_s, "cpu_share": None if cpu_s is None else cpu_s / lasted_s, "lasted_s": lasted_s,
        "idle_bytes": round((idle.wire_bytes or 0) / idle.duration_s * lasted_s),
    }  # fmt: skip


def describe_stream(window: Window, played: Played) -> dict[str, Any]:
    """Return updates, events, and the traffic over time that the figures draw."""
    return {
        "updates": played.updates, "late_updates": played.late, "file_bytes": played.size_bytes,
        "sync_events": len(window.events_s), "events_s": [round(event_s, 3) for event_s in window.events_s[:2000]],
        "bytes_per_update": (window.wire_bytes or 0) / played.updates, "sync_delay_s": window.sync_delay_s,
        "traffic_over_file": (window.wire_bytes or 0) / played.size_bytes,
        "up_over_file": (window.up_bytes or 0) / played.size_bytes, "each_second_bytes": window.every(1.0),
    }  # fmt: skip


def describe_percentiles(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of observed values by their metric names."""
    ordered_s = sorted(values_s)
    return {f"{name}_{label}": percentile(ordered_s, share) for label, share in PERCENTILES.items()}


def share_within(values_s: Sequence[float], least_s: float, most_s: float) -> float:
    """Return the share of values from ``least_s`` to below ``most_s``."""
    return sum(least_s <= value < most_s for value in values_s) / len(values_s)


def doubt_own_traffic(rests: Sequence[Window], start_up_s: float) -> list[str]:
    """Return a doubt if the client sends so often by itself that a payload after an append may have another cause."""
    events, rested_s = sum(len(window.events_s) for window in rests), sum(window.duration_s for window in rests)
    if events * start_up_s <= _LARGE_SHARE * rested_s:
        return []
    return [
        f"it began to send {events} times in {rested_s:.1f} s of rest: traffic after an append may be unrelated to it"
    ]


def note_idle_traffic(extra: Mapping[str, Any]) -> list[str]:
    """Return a remark if much of the traffic would have been sent without any change."""
    if extra["idle_bytes"] <= _LARGE_SHARE * extra["traffic_bytes"]:
        return []
    return [f"about {extra['idle_bytes']:,} of {extra['traffic_bytes']:,} bytes would have been sent without a change"]
