"""Suites on three hosts over ssh. Each host has its own clock, and reaches the service only through the connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.harness import Lab
from tests.fleet.hosts.ssh_hosts import SshHost, describe, three_hosts, why_impossible

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_impossible()), reason=why_impossible())]

SUITES = {
    "iot": ("--time-scale=20", "--max-ops=400"),
    "readiness": ("--max-ops=200",),
    "availability": ("--time-scale=200", "--max-ops=200"),
    "consistency": ("-k", "after_write"),
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SshHost]]:
    with three_hosts(Path(tmp_path_factory.mktemp("hosts"))) as new_hosts:
        yield new_hosts


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_runs_on_three_hosts(suite: str, lab: Lab, hosts: list[SshHost]) -> None:
    lab.write(describe(hosts), "hosts.toml")
    options = ("--provider", "emulated:ideal", "--cloudbench-hosts", "hosts.toml")
    run = lab.run("--pyargs", f"pytest_cloudbench.suites.{suite}", *options, *SUITES[suite])
    assert run.counts().get("passed", 0) > 0, run.text
    assert "INTERNALERROR" not in run.text
    assert not run.lines_with("cloudbench: host "), "none was lost"
    assert run.entries
    for entry in run.entries.values():
        info = entry["extra_info"]
        assert info["agents"] == 3
        assert info["missing_agents"] == {}
    assert run.leftovers == []
    assert [pid for host in hosts for pid in host.pids()] == []
