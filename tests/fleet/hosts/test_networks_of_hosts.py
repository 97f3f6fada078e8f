"""Networks between this machine and three hosts: outages, lost hosts, and no way from a host to the provider."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.services.command import CommandService, load_recipe
from pytest_cloudbench.support.clock import wait_for
from tests.fleet.harness import FinishedRun, Lab, RunningSession, grid, keys
from tests.fleet.hosts.ssh_hosts import SshHost, describe, three_hosts, why_impossible
from tests.limits import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_impossible()), reason=why_impossible())]

SENSORS, COUNT = 6, 60
TESTS = f"""
    from pytest_cloudbench import FixedInterval

    def test_first(experiment, payloads):
        experiment.run(
            payloads.random(50), arrival=FixedInterval(0.2), sensors={SENSORS}, ops_per_sensor={COUNT}
        ).check()

    def test_second(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2).check()
"""
OUTAGE_S = 10.0
PATIENCE_S = 8


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SshHost]]:
    with three_hosts(Path(tmp_path_factory.mktemp("hosts"))) as new_hosts:
        yield new_hosts


def begin(lab: Lab, hosts: list[SshHost], *more: str) -> RunningSession:
    lab.write(TESTS).write(describe(hosts), "hosts.toml")
    (lab.folder / "objects").mkdir()
    provider = f"folder:{lab.folder / 'objects'}"
    return lab.start("--provider", provider, "--cloudbench-hosts", "hosts.toml", *more)


def check_nothing_is_left(run: FinishedRun, hosts: list[SshHost]) -> None:
    assert "INTERNALERROR" not in run.text
    assert run.leftovers == []
    assert wait_for(lambda: not [pid for host in hosts for pid in host.pids()], HANG_S, poll_s=0.2)


def find_entry(run: FinishedRun, name: str) -> dict[str, Any]:
    [info] = [entry["extra_info"] for test, entry in run.entries.items() if test.startswith(name)]
    return dict(info)


def test_an_outage_shorter_than_the_patience_loses_nothing(lab: Lab, hosts: list[SshHost]) -> None:
    running = begin(lab, hosts)
    running.wait_for_records("gw1", "test_first", 5)
    for host in hosts:  # it is this machine whose network is gone
        host.unplug()
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(OUTAGE_S)
    for host in hosts:
        host.plug()
    run = running.end()
    assert run.counts()["passed"] == 2, run.text
    assert keys(run.records()["test_first"]) == grid(SENSORS, COUNT)
    assert not run.lines_with("cloudbench: host host")
    check_nothing_is_left(run, hosts)


def test_a_host_that_comes_back_too_late_has_ended_by_itself(lab: Lab, hosts: list[SshHost]) -> None:
    running = begin(lab, hosts, f"-ocloudbench_patience={PATIENCE_S}")
    running.wait_for_records("gw1", "test_first", 5)
    hosts[1].unplug()
    began_s = time.monotonic()
    try:
        running.wait_for(
            "line about the host", lambda: "cloudbench: host host2: has not answered for" in running.text()
        )
        assert time.monotonic() - began_s < PATIENCE_S + 10
        run = running.end()
    finally:
        hosts[1].plug()
    assert len(run.lines_with("cloudbench: host host2: ")) == 1
    assert run.counts() == {"failed": 1, "passed": 1}, run.text
    assert set(find_entry(run, "test_first")["missing_agents"]) == {"gw1"}
    assert find_entry(run, "test_second")["agents"] == 2
    check_nothing_is_left(run, hosts)
    assert begin_again(lab)["agents"] == 3


def begin_again(lab: Lab) -> dict[str, Any]:
    """Run the short test again, and return its entry."""
    provider = f"folder:{lab.folder / 'objects'}"
    run = lab.run("--provider", provider, "--cloudbench-hosts", "hosts.toml", "-k", "second")
    return find_entry(run, "test_second")


def test_no_way_to_the_provider_fails_its_operations_and_stops_nothing(lab: Lab, hosts: list[SshHost]) -> None:
    lab.write(TESTS).write(describe(hosts[:1]), "hosts.toml")
    service = CommandService(load_recipe("webdav"))
    endpoint = service.start()
    try:
        credentials = {f"CLOUDBENCH_WEBDAV_{name.upper()}": value for name, value in endpoint.credentials.items()}
        address = endpoint.url.removeprefix("http://").rstrip("/")
        options = ("--provider", f"webdav://{address}?tls=0", "--cloudbench-hosts", "hosts.toml", "-n", "1")
        run = lab.run(*options, "-k", "second", env=credentials)
    finally:
        service.stop()
    assert run.counts()["passed"] == 1, run.text
    assert not run.lines_with("cloudbench: host host"), "it answers"
    assert run.lines_with("network 6 x: [Errno 111] Connection refused")
    assert find_entry(run, "test_second")["failed_rate"] == 0.5
    check_nothing_is_left(run, hosts)


def test_an_emulator_at_an_address_is_reached_over_the_network_of_hosts(lab: Lab, hosts: list[SshHost]) -> None:
    lab.write(TESTS).write(describe(hosts), "hosts.toml")
    options = ("--provider", "emulated:ideal", "--cloudbench-hosts", "hosts.toml", "-k", "second")
    run = lab.run(*options, f"--cloudbench-serve-at={hosts[0].gateway}")
    assert run.counts()["passed"] == 1, run.text
    info = find_entry(run, "test_second")
    assert (info["ok_rate"], info["agents"]) == (1.0, 3)
    assert "through_controller" not in info
    assert info["wire_bytes_per_op"] is None, "no counter here sees both ends"
    assert "connection to their host" not in run.text
    check_nothing_is_left(run, hosts)
