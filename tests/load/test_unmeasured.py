"""The wait of an agent's unmeasured work for a provider that does not answer."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench.load.engine import unmeasured
from pytest_cloudbench.load.engine.unmeasured import Unmeasured
from pytest_cloudbench.model import CloudError, ErrorKind


class Clock:
    """A clock that advances while somebody waits."""

    def __init__(self) -> None:
        self.now_s, self.tries = 0.0, 0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return False


class AbsentProvider:
    """A provider at whose address nothing listens. Each try takes ``each_s``, and asks to wait ``retry_after_s``."""

    spec, is_kept, has_services, has_answered = "s3://mistyped", True, False, False

    def __init__(self, clock: Clock, kind: ErrorKind, each_s: float) -> None:
        self.clock, self.kind, self.each_s = clock, kind, each_s
        self.retry_after_s: float | None = None
        self.driver: Any = None

    def claim(self, folder: str, owner: str) -> None:
        self.clock.tries += 1
        self.clock.now_s += self.each_s
        raise CloudError(self.kind, "put", folder, retry_after_s=self.retry_after_s, detail="connection refused")


def prepare(
    monkeypatch: pytest.MonkeyPatch, kind: ErrorKind, each_s: float
) -> tuple[Clock, AbsentProvider, Unmeasured]:
    clock = Clock()
    monkeypatch.setattr(unmeasured, "time", clock)
    provider: Any = AbsentProvider(clock, kind, each_s)
    agent: Any = SimpleNamespace(stop=clock, sign_of_life=nullcontext)
    run_facts: Any = SimpleNamespace(owner="me", time_scale=1.0)
    return clock, provider, Unmeasured(agent, provider, run_facts)


@pytest.mark.parametrize(
    ("kind", "each_s", "has_answered", "tries", "waited_s"),
    [
        (ErrorKind.NETWORK, 0.0, False, 6, 5.0),  # a mistyped name is reported soon
        (ErrorKind.NETWORK, 0.0, True, 61, 60.0),  # an outage between two experiments is waited out
        (ErrorKind.NETWORK, 100.0, False, 1, 100.0),  # packets are dropped, so one try is enough
        (ErrorKind.AUTH, 0.0, True, 1, 0.0),  # an error that does not pass is not waited for
    ],
)
def test_wait_is_short_for_a_provider_that_never_answered(
    monkeypatch: pytest.MonkeyPatch, kind: ErrorKind, each_s: float, has_answered: bool, tries: int, waited_s: float
) -> None:
    clock, provider, work = prepare(monkeypatch, kind, each_s)
    provider.has_answered = has_answered
    with pytest.raises(CloudError, match="connection refused"):
        work.make_folder("/cloudbench-x/1", mkdir=True, is_fresh=True)
    assert (clock.tries, clock.now_s) == (tries, waited_s)


@pytest.mark.parametrize("retry_after_s", [61.0, 86400.0, 1e14])
def test_a_wait_that_a_provider_asks_for_ends_with_the_time_for_retries(
    monkeypatch: pytest.MonkeyPatch, retry_after_s: float
) -> None:
    clock, provider, work = prepare(monkeypatch, ErrorKind.THROTTLED, 0.0)
    provider.has_answered, provider.retry_after_s = True, retry_after_s
    with pytest.raises(CloudError, match="connection refused"):
        work.make_folder("/cloudbench-x/1", mkdir=True, is_fresh=True)
    assert (clock.tries, clock.now_s) == (2, 60.0), "it is tried once more at the end"


def test_the_time_for_retries_of_a_long_listing_begins_with_its_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, provider, work = prepare(monkeypatch, ErrorKind.THROTTLED, 100.0)
    provider.driver = SimpleNamespace(list=lambda folder: provider.claim(folder, ""))
    with pytest.raises(CloudError, match="connection refused"):
        work.send_listing("run", "/cloudbench-x/1")
    assert (clock.tries, clock.now_s) == (2, 201.0)
