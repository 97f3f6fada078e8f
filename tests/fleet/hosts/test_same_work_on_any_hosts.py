"""The same seed gives the same operations, however many hosts and agents share them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.fleet.harness import Lab
from tests.fleet.hosts.command_hosts import HERE, find_temporary

SENSORS, COUNT = 40, 3
TESTS = f"""
    import hashlib
    from pytest_cloudbench.workload.arrival import Poisson

    def test_put(experiment, payloads, provider, fleet):
        put, written = provider.driver.put, []
        def note(path, content):
            data = content.read(0, content.size_bytes)
            name = path.rpartition("/")[2]
            if name != "cloudbench-run":
                written.append(f"{{name}} {{len(data)}} {{hashlib.sha256(data).hexdigest()}}")
            return put(path, content)
        provider.driver.put = note
        experiment.run(
            payloads.random(700), arrival=Poisson(interval_s=0.5), sensors={SENSORS}, ops_per_sensor={COUNT}
        ).check()
        (pathlib.Path(os.environ["PIDS"]) / f"written-{{fleet.name}}").write_text("\\n".join(written))
"""
CUTS: Mapping[str, tuple[int, int]] = {"one host": (1, 6), "three hosts": (3, 2), "twenty hosts": (20, 1)}
"""The number of hosts, and the number of agents on each."""

Files: TypeAlias = set[str]
Operations: TypeAlias = set[tuple[int, int, int, bytes]]


def run_on(folder: Path, objects: Path, hosts: int, agents: int, seed: str = "7") -> tuple[Files, Operations]:
    """Run the test on so many hosts. Return name, size and digest of each file, and the recorded operations."""
    folder.mkdir()
    lab = Lab(folder)
    try:
        find_temporary(lab).mkdir()
        rows = [f'[[host]]\nname = "host{number}"\nagents = {agents}\n{HERE}' for number in range(hosts)]
        lab.write(TESTS).write("\n".join(rows), "hosts.toml")
        options = ("--provider", f"folder:{objects}", "--cloudbench-hosts", "hosts.toml", "--cloudbench-seed", seed)
        run = lab.run(*options, env={"TMPDIR": str(find_temporary(lab)), "PIDS": str(folder)})
        assert run.status == 0, run.text
        table = run.records()["test_put"]
        assert len(set(table.host)) == hosts
        written = [path.read_text().splitlines() for path in folder.glob("written-*")]
        assert len(written) == hosts * agents
        operations = {
            (op.sensor, op.seq, op.size_bytes, op.digest) for op in table.ops()
        }  # fmt: skip
        return {line for lines in written for line in lines}, operations
    finally:
        lab.close()


@pytest.mark.slow
def test_operations_are_the_same_however_hosts_are_cut(tmp_path: Path) -> None:
    objects = tmp_path / "objects"  # its path is a part of the test's name, on which content depends
    objects.mkdir()
    results = {name: run_on(tmp_path / name.replace(" ", "-"), objects, *cut) for name, cut in CUTS.items()}
    files, operations = results["one host"]
    assert len(files) == len(operations) == SENSORS * COUNT
    assert len({line.split()[2] for line in files}) == SENSORS * COUNT, "each file has its own content"
    assert all(digest for *_, digest in operations)
    for name in CUTS:
        assert results[name] == (files, operations), name
    other_files, _ = run_on(tmp_path / "another-seed", objects, 1, 2, seed="8")
    assert other_files.isdisjoint(files), "content follows from the seed"
