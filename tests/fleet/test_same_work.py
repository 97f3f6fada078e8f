"""The same experiments, whatever the number of agents: node ids, operations, entries, no leftovers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S

from .harness import FOLDER, IDEAL, FinishedRun, Lab, grid, keys

TESTS = """
    @pytest.mark.parametrize("interval_s", [0.02])
    def test_open(experiment, payloads, interval_s):
        result = experiment.run(payloads.random(200), arrival=FixedInterval(interval_s), sensors=7, ops_per_sensor=6)
        result.check()
        assert result["ops"] == 42

    def test_closed(experiment, payloads):
        result = experiment.run(payloads.random(200), arrival=ThinkTime(0.01, 0.02), sensors=3, ops_per_sensor=4)
        result.check()
        assert result["loss_rate"] == 0
"""


def check_complete(run: FinishedRun, agents: int) -> None:
    assert run.status == 0, run.text
    assert run.counts() == {"passed": 2}
    assert run.leftovers == []
    assert run.logs() == []
    assert set(run.entries) == {"test_open[folder:objects-0.02]", "test_closed[folder:objects]"}
    assert {entry["fullname"] for entry in run.entries.values()} == {
        "test_it.py::test_open[folder:objects-0.02]",
        "test_it.py::test_closed[folder:objects]",
    }
    records = run.records()
    assert keys(records["test_open"]) == grid(7, 6)
    assert keys(records["test_closed"]) == grid(3, 4)
    for name, ops in (("test_open[folder:objects-0.02]", 42), ("test_closed[folder:objects]", 12)):
        info = run.info(name)
        assert info["agents"] == agents
        assert info["missing_agents"] == {}
        assert (info["ops"], info["files"], info["lost"], info["ok"]) == (ops, ops, 0, ops)
        assert info["digest_checked"] is True
        assert run.entries[name]["stats"]["rounds"] == ops
    assert set(records["test_open"].agent) == set(range(min(agents, 7)))
    assert list((run.folder / "objects").rglob("*.bin")) == []


@pytest.mark.slow
def test_agents_on_another_host_send_their_logs(lab: Lab) -> None:
    lab.write(
        """
        import os
        from pytest_cloudbench.fleet import agent
        from pytest_cloudbench.results import oplog

        if "PYTEST_XDIST_WORKER" in os.environ:
            agent.host_id = lambda: "another"
            oplog._PIECE_BYTES = 1000  # several pieces of each log
        """,
        "conftest.py",
    )
    check_complete(lab.write(TESTS).run(*FOLDER, "-n", "2", "-ocloudbench_start=spawn"), 2)


@pytest.mark.parametrize("agents", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_every_number_of_agents_does_the_same_work(lab: Lab, agents: int) -> None:
    spread = [] if agents == 1 else ["-n", str(agents)]
    run = lab.write(TESTS).run(*FOLDER, "-v", *spread)
    check_complete(run, agents)
    node_ids = re.findall(r"^test_it\.py::\S+|(?<=\] )test_it\.py::\S+", run.text, re.M)
    assert sorted(set(node_ids)) == [
        "test_it.py::test_closed[folder:objects]",
        "test_it.py::test_open[folder:objects-0.02]",
    ]


@pytest.mark.slow
def test_fifty_agents_do_the_same_work(lab: Lab) -> None:
    check_complete(lab.write(TESTS).run(*FOLDER, "-n", "50"), 50)


@pytest.mark.slow
def test_one_worker_is_a_fleet_too(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "-n", "1")
    check_complete(run, 1)


def test_two_providers_in_one_run(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, *IDEAL, "-n", "2", "-k", "closed")
    assert run.status == 0, run.text
    assert run.counts() == {"passed": 2}
    assert run.leftovers == []
    assert set(run.entries) == {"test_closed[folder:objects]", "test_closed[emulated:ideal]"}
    info = run.info("test_closed[emulated:ideal]")
    assert (info["provider"], info["profile"], info["emulated"]) == ("emulated:ideal", "ideal", True)
    assert info["ok"] == 12
    assert run.info("test_closed[folder:objects]")["emulated"] is False
    assert len(list(run.folder.rglob("*.parquet"))) == 2
    assert len(run.lines_with("measures the client and the loopback")) == 1


@pytest.mark.slow
def test_entries_are_accepted_by_pytest_benchmark(lab: Lab) -> None:
    lab.write(TESTS)
    for spread in ([], ["-n", "2"]):
        run = lab.run(*FOLDER, *spread, "--benchmark-autosave", "--benchmark-compare", "-k", "closed")
        assert run.status == 0, run.text
        assert run.leftovers == []
    assert "test_closed[folder:objects] (0001_" in run.text, "the second run is compared with the first"
    assert len(run.lines_with("Wrote benchmark data in")) == 1
    stored_paths = sorted(lab.folder.glob("results/*/*.json"))
    assert [path.name[:5] for path in stored_paths] == ["0001_", "0002_"]
    comparison = subprocess.run(
        [str(Path(sys.executable).with_name("pytest-benchmark")), "--storage=results", "compare",
         "--columns=min,rounds", "0001", "0002"],
        cwd=lab.folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert comparison.returncode == 0, comparison.stderr
    assert len(re.findall(r"^test_closed.* \(000[12]_.* 12$", comparison.stdout, re.M)) == 2, comparison.stdout


KINDS = """
    @pytest.mark.parametrize("kind", ["jpeg", "text", "delta", "mixed", "identical"])
    def test_kind(experiment, provider, payloads, kind, monkeypatch):
        asked = {
            "delta": {"size_bytes": 900, "percent": 0.9},
            "mixed": {"distribution": "uniform", "min_bytes": 1, "max_bytes": 900},
        }
        payload = getattr(payloads, kind)(**asked.get(kind, {"size_bytes": 900}))
        put, names, data = provider.driver.put, set(), set()

        def noted(path, content):
            if not path.endswith("/cloudbench-run"):  # what marks the folder as a run's own
                names.add(path.rpartition(".")[2])
                data.add(content.read(0, 900))
            return put(path, content)

        monkeypatch.setattr(provider.driver, "put", noted)
        for _ in range(2):
            result = experiment.run(payload, arrival=FixedInterval(0.01), sensors=3, ops_per_sensor=2)
            assert (result["ok"], result["lost"]) == (6, 0)
        assert names == {{"jpeg": "jpg", "text": "txt"}.get(kind, "bin")}
        assert len(data) == (1 if kind == "identical" else 12)
        assert len({len(each) for each in data}) > (1 if kind == "mixed" else 0)
"""


@pytest.mark.slow
def test_every_kind_of_payload_has_its_name_is_found_again_and_new_in_a_second_run(lab: Lab) -> None:
    run = lab.write(KINDS).run(*FOLDER)
    assert run.status == 0, run.text
    assert run.counts() == {"passed": 5}
