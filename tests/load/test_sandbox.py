"""Private folders on a provider that throttles, and the effect of capabilities on experiments and run folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.messages import FromAgent, Tell
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.engine.operations import compare_content, make_task
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.load.request import Files
from pytest_cloudbench.load.sandbox import RetryingDriver, Sandbox, ThrottleWaits
from pytest_cloudbench.model import (
    BudgetError,
    CloudError,
    Content,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    UsageError,
    Verb,
)
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.results import journal
from pytest_cloudbench.workload.payload import Payloads
from pytest_cloudbench.workload.payload.contents import Literal
from tests.drivers.flat import FlatDriver


class ThrottledDriver:
    """A driver that refuses the first calls of each kind."""

    def __init__(self, driver: Any, refusals: int) -> None:
        self._driver, self._refusals, self.calls = driver, refusals, 0
        self.capabilities = driver.capabilities

    def _refuse(self, verb: str, path: str) -> None:
        self.calls += 1
        if self.calls <= self._refusals:
            raise CloudError(ErrorKind.THROTTLED, verb, path, retry_after_s=0.001)

    def put(self, path: str, content: Content) -> Entry:
        self._refuse("put", path)
        entry: Entry = self._driver.put(path, content)
        return entry

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        self._refuse("get", path)
        yield from self._driver.get(path, offset)

    def delete(self, path: str) -> None:
        self._driver.delete(path)


def sandbox_on(driver: Any, spec: str = "mine:", **limits: Any) -> Sandbox:
    bounds = {"max_ops": None, "max_bytes": None} | limits
    facts = RunFacts("run", "seed", 1.0, max_lateness_s=1.0, results="", host="", **bounds)
    return Sandbox(Provider(spec, driver), Agent("main", lambda message: None), facts)


@pytest.mark.parametrize("refusals", [0, 1, 59])
def test_throttled_calls_are_retried(tmp_path: Path, refusals: int) -> None:
    driver = ThrottledDriver(FlatDriver(tmp_path), refusals)
    sandbox_driver = sandbox_on(driver).driver
    assert sandbox_driver.put("/a", Literal(b"abc")).size_bytes == 3
    assert driver.calls == refusals + 1
    driver.calls = 0
    assert b"".join(sandbox_driver.get("/a", 1)) == b"bc"
    assert driver.calls == refusals + 1


class PreparingDriver(FlatDriver):
    """A driver that has to prepare a folder before the folder is used."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.prepared: list[str] = []

    def prepare(self, folder: str) -> None:
        self.prepared.append(folder)


def test_driver_prepares_each_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    driver = PreparingDriver(tmp_path)
    sandbox = sandbox_on(driver)
    assert [sandbox.folder(), sandbox.folder()] == driver.prepared
    assert len(set(driver.prepared)) == 2


class DisconnectedDriver(FlatDriver):
    """A driver whose first upload fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.uploads = 0

    def put(self, path: str, content: Content) -> Entry:
        self.uploads += 1
        if self.uploads == 1:
            raise CloudError(ErrorKind.NETWORK, "put", path)
        return super().put(path, content)


def test_a_folder_is_claimed_again_after_a_claim_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    driver = DisconnectedDriver(tmp_path / "objects")
    sandbox = sandbox_on(driver, spec=f"folder:{tmp_path}/objects")
    with pytest.raises(CloudError, match="put"):
        sandbox.folder()
    root = sandbox.folder().rpartition("/")[0]
    assert [entry.path for entry in driver.list(root)] == [f"{root}/{journal.MARKER}"]
    assert {pending.folder for pending in journal.pending_folders()[0]} == {root}
    sandbox.folder()
    assert driver.uploads == 2, "one claim is enough"


def test_a_claim_that_failed_leaves_no_note_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    sandbox = sandbox_on(DisconnectedDriver(tmp_path / "objects"), spec=f"folder:{tmp_path}/objects")
    with pytest.raises(CloudError, match="put"):
        sandbox.folder()
    sandbox.close()
    assert journal.pending_folders() == ([], [])


def test_throttling_without_end_is_an_error(tmp_path: Path) -> None:
    driver = ThrottledDriver(FlatDriver(tmp_path), 10_000)
    with pytest.raises(CloudError) as caught:
        sandbox_on(driver).driver.put("/a", Literal(b"abc"))
    assert caught.value.kind is ErrorKind.THROTTLED
    assert driver.calls == 60


def test_other_errors_are_not_retried(tmp_path: Path) -> None:
    with pytest.raises(CloudError) as caught:
        list(sandbox_on(FlatDriver(tmp_path)).driver.get("/no"))
    assert caught.value.kind is ErrorKind.NOT_FOUND


def test_budget_holds_except_for_removal(tmp_path: Path) -> None:
    sandbox = sandbox_on(FlatDriver(tmp_path), max_ops=2, max_bytes=10)
    sandbox.driver.put("/a/b", Literal(b"12345678"))
    with pytest.raises(BudgetError, match="max-bytes 10"):
        sandbox.driver.put("/a/c", Literal(b"123"))
    sandbox.driver.stat("/a/b")
    with pytest.raises(BudgetError, match="max-ops 2"):
        sandbox.driver.stat("/a/b")
    sandbox.remove("/a")
    assert list(FlatDriver(tmp_path).list("/")) == []


def test_a_run_folder_of_flat_keys_goes_with_its_last_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider without folders never finds one, even if files are in it."""
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    driver, folder = FlatDriver(tmp_path / "objects"), "/cloudbench-20260101T000000Z-abcd"
    journal.claim_folder(driver, "flat:", folder, "")
    driver.put(f"{folder}/test/a", Literal(b"1"))
    journal.release_folder(driver, "flat:", folder)
    assert [pending.folder for pending in journal.pending_folders()[0]] == [folder]
    assert journal.remove_folder(driver, journal.LeftFolder("flat:", folder)) == ""
    assert list(driver.list("/")) == []
    assert journal.pending_folders() == ([], [])


def test_a_folder_without_marker_is_left_alone_also_on_flat_keys(tmp_path: Path) -> None:
    driver, folder = FlatDriver(tmp_path), "/cloudbench-20260101T000000Z-abcd"
    driver.put(f"{folder}/mine", Literal(b"1"))
    assert "left alone" in journal.remove_folder(driver, journal.LeftFolder("flat:", folder))
    assert [entry.path for entry in driver.list("/")] == [f"{folder}/mine"]


@pytest.mark.parametrize("overwrites", ["0", "1"])
def test_every_test_of_a_run_claims_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrites: str
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    spec = ProviderSpec.parse(f"flat:{tmp_path}/objects?overwrites={overwrites}")
    driver, folder = FlatDriver.connect(spec, None, {}), "/cloudbench-20260101T000000Z-abcd"
    for _ in range(2):
        journal.claim_folder(driver, "flat:", folder, "")
    assert [entry.path for entry in driver.list(folder)] == [f"{folder}/{journal.MARKER}"]


def test_a_name_that_the_provider_refuses_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    driver, payload = drivers.connect(ProviderSpec.parse(f"folder:{tmp_path}")), Payloads("x").random(1)
    make_task(driver, Verb.PUT, Files("/run", payload, named=FileNames(prefix="n" * 200)), {})
    with pytest.raises(UsageError, match="at most 255 characters"):
        make_task(driver, Verb.PUT, Files("/run", payload, named=FileNames(prefix="n" * 250)), {})
    other = FlatDriver(tmp_path, replace(driver.capabilities, names=NameRules(refused=":")))
    with pytest.raises(UsageError, match=r"'a:b\.bin': this provider does not accept it: no name may hold ':'"):
        make_task(other, Verb.PUT, Files("/run", payload, named=FileNames(only="a:b.bin")), {})


def test_a_digest_is_expected_of_files_that_have_one(tmp_path: Path) -> None:
    driver = FlatDriver(tmp_path)
    for size_bytes, length in ((5 * 1024 * 1024, 16), (5 * 1024 * 1024 + 1, 0)):
        task = make_task(driver, Verb.PUT, Files("/run", Payloads("x").random(size_bytes)), {})
        assert len(task.prepare(0, 0)[2]) == length


@pytest.mark.parametrize("streams", [False, True])
def test_first_byte_is_timed_only_for_streaming_downloads(tmp_path: Path, streams: bool) -> None:
    capabilities = replace(FlatDriver.capabilities, streams=streams)
    driver = FlatDriver(tmp_path, capabilities)
    driver.put("/a", Literal(b"abc"))
    assert compare_content(driver, "/a", Literal(b"abc"), lambda: 7) == (7 if streams else 0, 3, True)


@pytest.mark.parametrize(("retry_after_s", "waits_s"), [(None, [None]), (30.0, [30.0]), (86_400.0, [])])
def test_a_call_waits_as_the_provider_asks_but_not_for_a_day(retry_after_s: float | None, waits_s: list[Any]) -> None:
    class Throttled:
        def __init__(self) -> None:
            self.has_refused = False

        def stat(self, path: str) -> Entry:
            if self.has_refused:
                return Entry(path)
            self.has_refused = True
            raise CloudError(ErrorKind.THROTTLED, "stat", path, retry_after_s=retry_after_s)

    waited_s: list[Any] = []
    driver: Any = RetryingDriver(cast("Any", Throttled()), Budget(), waited_s.append)
    if waits_s:
        assert driver.stat("/a") == Entry("/a")
    else:
        with pytest.raises(CloudError, match="throttled"):
            driver.stat("/a")
    assert waited_s == waits_s


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ([(0.0, 30.0)], [30]),
        ([(0.0, 30.0), (0.1, 30.0), (0.2, 29.9)], [30]),  # of three threads
        ([(0.0, 30.0), (30.0, 20.0)], [30, 20]),
        ([(0.0, 1.0), (1.0, None), (2.0, 1.0), (3.0, 1.0)], []),
        ([(float(second), None) for second in range(12)], [1, 1]),
        ([(0.0, 4.0), (60.0, 4.0), (120.0, 4.0)], []),
    ],
)
def test_a_long_wait_is_told(waits: list[tuple[float, float | None]], told: list[int]) -> None:
    messages: list[FromAgent] = []
    agent = Agent("main", messages.append)
    agent.stop.set()  # waits for nothing
    times = iter(now_s for now_s, _ in waits)
    wait = ThrottleWaits(agent, "s3://pail", 1.0, clock=lambda: next(times))
    for _, requested_s in waits:
        wait(requested_s)
    assert messages == [Tell("waits", f"s3://pail throttles: it is asked again in {wait_s} s") for wait_s in told]
