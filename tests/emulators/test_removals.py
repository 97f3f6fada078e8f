"""Tests of removed files that reads and listings still see, with each emulator and its own driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.emulators.profile import parse_profile
from pytest_cloudbench.model import CloudError, ConfigError, ErrorKind, ProviderSpec
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload.contents import Literal

HOUR_S = 3600


@pytest.fixture(scope="module", params=["box", "gdrive", "mega", "onedrive"])
def emulator(request: pytest.FixtureRequest) -> Iterator[EmulatorService]:
    with start_emulator(f"{request.param}-ideal") as running:
        yield running


@pytest.fixture
def clients(emulator: EmulatorService) -> Iterator[list[Any]]:
    """Two clients of one empty account."""
    emulator.control(reset=True)
    with ExitStack() as stack:
        spec = ProviderSpec.parse(emulator.endpoint.api)
        yield [stack.enter_context(closing(drivers.connect(spec, emulator.endpoint))) for _ in range(2)]


def list_sizes(driver: Any) -> dict[str, int]:
    return {entry.path: entry.size_bytes for entry in driver.list("/in")}


def kind_of(action: Any) -> ErrorKind:
    with pytest.raises(CloudError) as caught:
        action()
    return caught.value.kind


def test_removed_file_stays_visible_to_reads_but_not_to_writes(emulator: EmulatorService, clients: list[Any]) -> None:
    writer, reader = clients
    writer.put("/in/a", Literal(b"old"))
    writer.put("/in/b", Literal(b"stays"))
    assert list_sizes(reader) == {"/in/a": 3, "/in/b": 5}
    emulator.control(set={"readiness.delete_delay_s": HOUR_S})
    try:
        writer.delete("/in/a")
        assert list_sizes(reader) == {"/in/a": 3, "/in/b": 5}
        assert b"".join(reader.get("/in/a")) == b"old"
        assert reader.stat("/in/a").size_bytes == 3
        assert kind_of(lambda: reader.delete("/in/a")) is ErrorKind.NOT_FOUND
        if emulator.endpoint.api == "gdrive":  # the driver finds the file by a search, and then writes to its id
            assert kind_of(lambda: writer.put("/in/a", Literal(b"again"))) is ErrorKind.NOT_FOUND
            return
        writer.put("/in/a", Literal(b"again"))
        assert list_sizes(reader) == {"/in/a": 5, "/in/b": 5}
        assert b"".join(reader.get("/in/a")) == b"again"
    finally:
        emulator.control(set={"readiness.delete_delay_s": 0})


def test_removed_file_disappears_without_the_delay(clients: list[Any]) -> None:
    writer, reader = clients
    writer.put("/in/a", Literal(b"old"))
    writer.put("/in/b", Literal(b"stays"))
    assert b"".join(reader.get("/in/a")) == b"old"
    writer.delete("/in/a")
    assert list_sizes(reader) == {"/in/b": 5}
    assert kind_of(lambda: b"".join(reader.get("/in/a"))) is ErrorKind.NOT_FOUND


def two_answers(look: Callable[[], Any]) -> set[Any]:
    """Look until two answers differ or a minute has passed, and return the different answers."""
    answers = set[Any]()

    def differ() -> bool:
        answers.add(look())
        return len(answers) > 1

    wait_for(differ, 60.0, poll_s=0.001)
    return answers


@pytest.mark.parametrize("api", ["dropbox", "gdrive"])
@pytest.mark.parametrize("turn_s", [0.0, 0.05], ids=["any replica", "in turns"])
def test_one_replica_lags_and_the_other_does_not(api: str, turn_s: float) -> None:
    name = "ideal" if api == "dropbox" else f"{api}-ideal"
    with start_emulator(name) as running, closing(drivers.connect(ProviderSpec.parse(api), running.endpoint)) as driver:
        driver.put("/in/a", Literal(b"old"))
        driver.put("/in/b", Literal(b"gone"))
        lag = {"readiness.replica_lag_s": HOUR_S, "readiness.replica_turn_s": turn_s}
        running.control(set={"readiness.replicas": 2, **lag})
        driver.put("/in/a", Literal(b"newer"))
        assert two_answers(lambda: b"".join(driver.get("/in/a"))) == {b"old", b"newer"}
        assert two_answers(lambda: list_sizes(driver)["/in/a"]) == {3, 5}
        driver.delete("/in/b")
        assert two_answers(lambda: "/in/b" in list_sizes(driver)) == {True, False}
        running.control(set={"readiness.replicas": 0, "readiness.replica_lag_s": 0})
        driver.put("/in/c", Literal(b"fresh"))
        assert {b"".join(driver.get("/in/c")) for _ in range(20)} == {b"fresh"}


def test_replicas_that_an_emulator_cannot_have_are_refused() -> None:
    for api, replicas, message in (("mega", 2, "no such delay"), ("onedrive", 2, "no such"), ("dropbox", 1, "2 or mo")):
        lines = f'[meta]\nname = "x"\napi = "{api}"\ndescription = "x"\n[readiness]\nreplicas = {replicas}\n'
        with pytest.raises(ConfigError, match=message):
            parse_profile(f"{lines}replica_lag_s = 1", "x.toml")
