"""Delays that an emulator is given are found, and a provider without them shows no stale read.

The assertions on times hold on the slowest machine: the set delay lies between the observations before and after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fleet.harness import FOLDER, IDEAL, FinishedRun, Lab

from .harness import profile, run_suite

DELAYED = {
    "delay_s": ("read_after_write", "list_after_write", "read_after_overwrite", "concurrent_overwrite"),
    "list_delay_s": ("list_after_write", "list_after_overwrite"),
    "delete_delay_s": ("read_after_delete", "list_after_delete"),
}
"""The settings of the profile, and the checks that each makes stale."""
OTHERS = {"delay_s": "read_after_delete", "list_delay_s": "read_after_overwrite", "delete_delay_s": "list_after_write"}
"""A check that each setting leaves alone."""


def infos(run: FinishedRun) -> dict[str, Mapping[str, Any]]:
    return {entry["extra_info"]["check"]: entry["extra_info"] for entry in run.document["benchmarks"]}


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["delay_s", "list_delay_s", "delete_delay_s"])
def test_a_delay_is_found_again(lab: Lab, setting: str) -> None:
    delay_s = 1.0
    chosen = " or ".join((*DELAYED[setting], OTHERS[setting]))
    run = run_suite(
        lab, "consistency", *profile(lab, readiness={setting: delay_s}), "-k", chosen, "--consistency-files", "3"
    )
    assert run.status == 0, run.text
    info_by_check = infos(run)
    for check in DELAYED[setting]:
        info = info_by_check[check]
        assert info["doubts"] == []
        assert (info["files"], info["never"], info["flips"]) == (3, 0, 0)
        rows = zip(info["low_s"], info["high_s"], info["write_s"], info["stale_per_file"], strict=True)
        for low_s, high_s, write_s, stale in rows:
            if stale:  # the delay counts from a moment within the write
                assert low_s <= delay_s, check
            assert high_s + write_s >= delay_s, check
    assert any(info_by_check[check]["violated"] for check in DELAYED[setting]), run.text
    assert info_by_check[OTHERS[setting]]["violated"] == 0


@pytest.mark.parametrize("api", ["box", "gdrive", "onedrive"])
@pytest.mark.slow
def test_a_delay_of_listings_is_found_on_other_services(lab: Lab, api: str) -> None:
    """Drive is read by a search, which is a listing: only the content of a file that it has found already is fresh."""
    late = {"list_after_write"} | ({"read_after_write"} if api == "gdrive" else set())
    chosen = "list_after_write or read_after_write"
    slow = profile(lab, api, readiness={"list_delay_s": 1.5})
    run = run_suite(lab, "consistency", *slow, "-k", chosen, "--consistency-files", "3")
    assert run.status == 0, run.text
    for check, info in infos(run).items():
        assert (info["files"], info["never"]) == (3, 0)
        assert bool(info["violated"]) is (check in late), check
        if check in late:
            assert all(low_s <= 1.5 for low_s in info["low_s"]), check
            assert all(high_s + write_s >= 1.5 for high_s, write_s in zip(info["high_s"], info["write_s"], strict=True))


@pytest.mark.parametrize("api", ["box", "gdrive", "mega", "onedrive"])
@pytest.mark.slow
def test_a_delay_of_removals_is_found_on_other_services(lab: Lab, api: str) -> None:
    delay_s = 1.5
    slow = profile(lab, api, readiness={"delete_delay_s": delay_s})
    run = run_suite(lab, "consistency", *slow, "-k", "after_delete or list_after_write", "--consistency-files", "3")
    assert run.status == 0, run.text
    info_by_check = infos(run)
    assert info_by_check.keys() == {"read_after_delete", "list_after_delete", "list_after_write"}
    assert info_by_check.pop("list_after_write")["violated"] == 0
    for check, info in info_by_check.items():
        assert (info["files"], info["never"]) == (3, 0)
        assert info["violated"] > 0, check
        for low_s, high_s, write_s in zip(info["low_s"], info["high_s"], info["write_s"], strict=True):
            assert low_s <= delay_s <= high_s + write_s, check


@pytest.mark.slow
def test_violations_keep_their_history(lab: Lab) -> None:
    slow = profile(lab, readiness={"delay_s": 1.5})
    run = run_suite(lab, "consistency", *slow, "-k", "read_after_write", "--consistency-files", "2")
    info = infos(run)["read_after_write"]
    assert info["violated"] == 2, run.text
    assert run.lines_with("read_after_write on emulated:./known.toml: 2 of 2 files (not there ")
    (path,) = lab.folder.rglob("violations-read_after_write.jsonl")
    violations = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(read[2] == "not there" for line in violations for read in line["reads"]) == info["stale_reads"]
    assert all(line["reads"][-1][2] == "right" for line in violations)


@pytest.mark.slow
@pytest.mark.parametrize("provider", [FOLDER, IDEAL])
def test_a_consistent_provider_shows_nothing(lab: Lab, provider: tuple[str, str]) -> None:
    run = run_suite(lab, "consistency", *provider, "--consistency-files", "4")
    assert run.counts() == {"passed": 8}, run.text
    for check, info in infos(run).items():
        assert (info["files"], info["violated"], info["stale_reads"]) == (4, 0, 0), check
        assert info["violation_rate"] == 0.0
        assert info["consistency_max"] == 0.0
        assert info["doubts"] == []
    assert not list(lab.folder.rglob("violations-*"))


@pytest.mark.slow
def test_a_file_that_takes_too_long_is_no_number(lab: Lab) -> None:
    """The run has two agents, and one of them waits."""
    lab.write("""
        from pytest_cloudbench.load.probes.consistency import measure_consistency

        def test_late(experiment, payloads):
            measure_consistency(experiment, payloads.random(100), "read_after_write", 2, deadline_s=0.3)
    """)
    run = lab.run(*profile(lab, readiness={"delay_s": 3600}), "-n", "2")
    (entry,) = run.document["benchmarks"]
    info = entry["extra_info"]
    assert (info["never"], info["consistency_p50"]) == (2, None)
    assert run.lines_with("2 of 2 files were not consistent after 0.3 s")


@pytest.mark.slow
def test_file_missing_after_simultaneous_writes_may_reappear(lab: Lab) -> None:
    """Many equal reads do not end the wait if their content was never written: a file is lost only at the deadline."""
    lab.write("""
        from pytest_cloudbench.drivers.folder import FolderDriver
        from pytest_cloudbench.load.probes.consistency import measure_consistency
        from pytest_cloudbench.model import CloudError, ErrorKind

        def test_late(experiment, payloads, monkeypatch):
            put, get, written = FolderDriver.put, FolderDriver.get, {}

            def late_put(self, path, content):
                entry = put(self, path, content)
                written.setdefault(path, []).append(time.monotonic())
                return entry

            def late_get(self, path, offset=0):
                if len(written[path]) > 1 and time.monotonic() - written[path][-1] < 1:
                    raise CloudError(ErrorKind.NOT_FOUND, "get", path)
                return get(self, path, offset)

            monkeypatch.setattr(FolderDriver, "put", late_put)
            monkeypatch.setattr(FolderDriver, "get", late_get)
            measure_consistency(experiment, payloads.random(100), "concurrent_overwrite", 2, deadline_s=60)
    """)
    run = lab.run(*FOLDER)
    assert run.status == 0, run.text
    (info,) = infos(run).values()
    assert (info["never"], info["violated"]) == (0, 2), run.text
    assert info["seen"].keys() == {"not there"}
    assert all(high_s + write_s >= 1 for high_s, write_s in zip(info["high_s"], info["write_s"], strict=True))


@pytest.mark.slow
def test_a_service_that_keeps_both_attempts_is_found(lab: Lab) -> None:
    """Drive allows two files of one name. Dropbox does not."""
    two = ("--provider", "emulated:gdrive", "--provider", "emulated:ideal")
    run = run_suite(lab, "consistency", *two, "-k", "repeated_write", "--consistency-files", "2")
    info_by_provider = {entry["extra_info"]["provider"]: entry["extra_info"] for entry in run.document["benchmarks"]}
    assert info_by_provider["emulated:gdrive"]["seen"].keys() == {"2 files"}
    assert info_by_provider["emulated:gdrive"]["never"] == 2
    assert info_by_provider["emulated:ideal"]["violation_rate"] == 0.0


@pytest.mark.parametrize("kind", ["throttled", "conflict"])
@pytest.mark.parametrize("check", ["concurrent_overwrite", "repeated_write"])
def test_writes_that_were_turned_away_never_met(lab: Lab, check: str, kind: str) -> None:
    """A writer that loses a conflict has met the winner. One that was throttled has met nobody."""
    lab.write(f"""
        from pytest_cloudbench.drivers.folder import FolderDriver
        from pytest_cloudbench.load.probes.consistency import measure_consistency
        from pytest_cloudbench.model import CloudError, ErrorKind

        def test_one_wins(experiment, payloads, monkeypatch):
            put, lock, winners = FolderDriver.put, threading.Lock(), set()

            def put_of_one(self, path, content):
                writer = threading.current_thread().name
                with lock:
                    if writer.startswith("writer") and path in winners:
                        raise CloudError(ErrorKind("{kind}"), "put", path)
                    if writer.startswith("writer"):
                        winners.add(path)
                return put(self, path, content)

            monkeypatch.setattr(FolderDriver, "put", put_of_one)
            measure_consistency(experiment, payloads.random(100), "{check}", 2, settle_s=0.5)
    """)
    info = infos(lab.run(*FOLDER))[check]
    if kind == "conflict":
        assert (info["files"], info["violation_rate"], info["doubts"]) == (2, 0.0, [])
    else:
        assert (info["files"], info["violation_rate"]) == (0, None)
        assert info["doubts"] == ["2 of 2 files were not judged: all writers but one were refused (throttled) 2"]


# --- replicas that differ: reads go back and forth between states ---------------------------------------


def assert_holds(info: Mapping[str, Any], truth_s: float) -> None:
    """Assert that the interval of each file holds the truth."""
    assert info["doubts"] == []
    assert (info["never"], info["files"]) == (0, len(info["low_s"]))
    for low_s, high_s, write_s in zip(info["low_s"], info["high_s"], info["write_s"], strict=True):
        assert low_s <= truth_s <= high_s + write_s, info["check"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lag_s", "replicas", "turn_s", "checks"),
    [
        (0.2, 2, 0.0, "read_after_overwrite or list_after_delete"),
        (1.0, 3, 0.0, "read_after or list_after_overwrite"),
        (1.0, 2, 0.2, "concurrent_overwrite or list_after"),
        (3.0, 4, 0.0, "read_after_delete or list_after_write"),
    ],
)
def test_flapping_replicas_are_found_with_their_time_of_agreement(
    lab: Lab, lag_s: float, replicas: int, turn_s: float, checks: str
) -> None:
    flapping = {"replicas": replicas, "replica_lag_s": lag_s, "replica_turn_s": turn_s}
    run = run_suite(lab, "consistency", *profile(lab, readiness=flapping), "-k", checks, "--consistency-files", "5")
    assert run.status == 0, run.text
    for check, info in infos(run).items():
        assert_holds(info, lag_s)
        assert info["flips"] >= info["flapped"] > 0, check
        text = f"{check}: {info['flapped']} of 5 files flapped: reads went back to a former state {info['flips']} times"
        assert run.lines_with(text), run.text
    assert not run.lines_with("operations, "), "only a load that mixes operations tells them apart"


@pytest.mark.slow
def test_a_delay_without_replicas_is_no_flapping(lab: Lab) -> None:
    slow = profile(lab, readiness={"delay_s": 0.5, "delete_delay_s": 0.5})
    run = run_suite(lab, "consistency", *slow, "-k", "read_after", "--consistency-files", "3")
    assert run.status == 0, run.text
    for info in infos(run).values():
        assert (info["flips"], info["flapped"]) == (0, 0)
        assert info["violated"] > 0
    assert not run.lines_with("flapped")


def test_replicas_that_never_agree_give_a_lower_bound(lab: Lab) -> None:
    lab.write("""
        from pytest_cloudbench.load.probes.consistency import measure_consistency

        def test_never(experiment, payloads):
            measure_consistency(experiment, payloads.random(100), "read_after_write", 4, deadline_s=1.0, settle_s=0.5)
    """)
    run = lab.run(*profile(lab, readiness={"replicas": 2, "replica_lag_s": 3600}))
    info = infos(run)["read_after_write"]
    assert (info["never"], info["flapped"], info["consistency_p50"]) == (4, 4, None)
    assert min(info["low_s"]) > 1.0
    assert info["high_s"] == [None] * 4
    assert run.lines_with("4 of 4 files were not consistent after 1 s"), run.text
    assert run.lines_with("their times are lower bounds, the longest 1."), run.text


PATTERNS = {
    "by request": ("count % 2", "read_after_overwrite", 0.0),
    "in bursts": ("since_s % 0.3 < 0.15", "read_after_delete", 0.0),
    "at random, with failures": ("draws.random() < 0.4", "read_after_overwrite", 0.2),
    "one of three, four writers": ("count % 3 == 0", "concurrent_overwrite", 0.0),
}
"""The condition of a stale read, the check, and the share of reads that fail."""


@pytest.mark.parametrize("pattern", [
    "by request", *(pytest.param(name, marks=pytest.mark.slow) for name in PATTERNS if name != "by request")
])  # fmt: skip
def test_any_pattern_of_flapping_is_found(lab: Lab, pattern: str) -> None:
    """A folder whose reads may see the former state of a file until a second after its last change."""
    truth_s = 1.0
    is_stale, check, failing = PATTERNS[pattern]
    lab.write(f"""
        import itertools, random
        from pytest_cloudbench.drivers.folder import FolderDriver
        from pytest_cloudbench.load.probes.consistency import measure_consistency
        from pytest_cloudbench.model import CloudError, ErrorKind

        def test_flap(experiment, payloads, monkeypatch):
            put, get, delete = FolderDriver.put, FolderDriver.get, FolderDriver.delete
            lock, former, draws, counter = threading.Lock(), {{}}, random.Random(7), itertools.count()

            def changed(self, path, change):
                with lock:
                    try:
                        before = b"".join(get(self, path))
                    except CloudError:
                        before = None
                    result = change()
                    former[path] = before, time.monotonic()
                return result

            def flapping_get(self, path, offset=0):
                before, changed_s = former.get(path, (None, 0.0))
                since_s, count = time.monotonic() - changed_s, next(counter)
                if draws.random() < {failing}:
                    raise CloudError(ErrorKind.THROTTLED, "get", path, retry_after_s=0.05)
                if since_s >= {truth_s} or not ({is_stale}):
                    yield from get(self, path, offset)
                elif before is None:
                    raise CloudError(ErrorKind.NOT_FOUND, "get", path)
                else:
                    yield before

            monkeypatch.setattr(FolderDriver, "put", lambda self, p, c: changed(self, p, lambda: put(self, p, c)))
            monkeypatch.setattr(FolderDriver, "delete", lambda self, p: changed(self, p, lambda: delete(self, p)))
            monkeypatch.setattr(FolderDriver, "get", flapping_get)
            measure_consistency(experiment, payloads.random(100), "{check}", 3, settle_s=1.0)
    """)
    run = lab.run(*FOLDER)
    assert run.status == 0, run.text
    (info,) = infos(run).values()
    assert_holds(info, truth_s)
    assert info["flapped"] == 3
    assert info["flips"] > 3
    assert bool(info["unknown_reads"]) is bool(failing)


THROTTLED_READS = """
    from pytest_cloudbench.drivers.folder import FolderDriver
    from pytest_cloudbench.model import CloudError, ErrorKind

    get, tries = FolderDriver.get, dict()

    def get_or_refuse(self, path, offset=0):
        tries[path] = tries.get(path, 0) + 1
        if tries[path] <= REFUSALS:
            raise CloudError(ErrorKind.THROTTLED, "get", path, retry_after_s=1.0)
        return get(self, path, offset)

    FolderDriver.get = get_or_refuse
"""


@pytest.mark.parametrize("refusals", [0, 2])
def test_a_read_that_is_refused_for_seconds_proves_no_consistency(lab: Lab, refusals: int) -> None:
    lab.write(THROTTLED_READS.replace("REFUSALS", str(refusals)), "conftest.py")
    run = run_suite(lab, "consistency", ".", *FOLDER, "-k", "read_after_write", "--consistency-files", "2")
    info = infos(run)["read_after_write"]
    assert (info["files"], info["violated"]) == (2, 0)
    doubts = [doubt for doubt in info["doubts"] if doubt.endswith(" s in which all reads failed")]
    assert bool(doubts) == bool(refusals), info["doubts"]
