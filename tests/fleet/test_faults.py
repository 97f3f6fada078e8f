"""A profile's faults. They hit only measured operations, and the run's seed determines which ones."""

from __future__ import annotations

import pytest

from tests.runs import SPREAD, Spread

from .harness import FinishedRun, Lab

PROFILE = '[meta]\nname = "{name}"\napi = "dropbox"\ndescription = "sick"\n[faults]\n{faults}\n'
SICK = ("--provider", "emulated:./sick.toml")
BENCH = """
[[experiment]]
name = "x"
threads = 2
files = 8
operations = ["{operation}"]
payload = {{generator = "random", size_bytes = 300}}
"""


def write_profile(lab: Lab, faults: str, name: str = "sick") -> Lab:
    (lab.folder / f"{name}.toml").write_text(PROFILE.format(name=name, faults=faults))
    return lab


@pytest.mark.quick_cases(1)
@SPREAD
@pytest.mark.parametrize(
    ("faults", "kind"), [("error_rate = 1", "server"), ("reset_rate = 1", "network")], ids=["errors", "resets"]
)
def test_faults_fail_only_measured_operations(lab: Lab, spread: Spread, faults: str, kind: str) -> None:
    write_profile(lab, faults).write("""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import CloudError, Verb

        def test_download(experiment, payloads):
            result = experiment.run(payloads.random(300), arrival=Threads(2), files=8, operation=Verb.GET)
            assert (result["ops"], result["ok"], result["failed"]) == (8, 0, 8)

        def test_upload(experiment, payloads):
            result = experiment.run(payloads.random(300), arrival=Threads(2), files=8)
            assert (result["ops"], result["ok"], result["failed"]) == (8, 0, 8)
            assert result.doubts == () and result["files"] == 8

        def test_kept_files_are_removed(experiment, payloads):
            made = experiment.run(payloads.random(300), arrival=Threads(2), files=8, operation=Verb.GET, keep=True)
            assert experiment.remove(made.files)

        def test_what_a_test_does_itself_is_its_own(experiment, payloads):
            experiment.run(payloads.random(300), arrival=Threads(2), files=8)
            with pytest.raises(CloudError):
                experiment.provider.driver.mkdir("/mine")
    """)
    run = lab.run(*SICK, *spread)
    assert run.counts() == {"passed": 4}, run.text
    errors = run.info("test_download[emulated:./sick.toml]")["errors"]
    assert errors == {kind: 8}


def test_faults_of_an_experiment_do_not_reach_a_later_folder_of_a_sandbox(lab: Lab) -> None:
    write_profile(lab, "error_rate = 1").write("""
        from pytest_cloudbench.workload.arrival import Threads

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(experiment, sandbox, payloads, number):
            content = payloads.random(30).content(0, 0)
            sandbox.driver.put(f"{sandbox.folder()}/a", content)
            assert experiment.run(payloads.random(300), arrival=Threads(2), files=8)["failed"] == 8
            sandbox.driver.put(f"{sandbox.folder()}/a", content)
    """)
    run = lab.run(*SICK)
    assert run.counts() == {"passed": 2}, run.text


@pytest.mark.slow
@SPREAD
def test_prepared_files_are_not_corrupted(lab: Lab, spread: Spread) -> None:
    write_profile(lab, "corrupt_rate = 1").write(BENCH.format(operation="download"), "get.bench.toml")
    lab.write(BENCH.format(operation="upload"), "put.bench.toml")
    run = lab.run("get.bench.toml", "put.bench.toml", *SICK, *spread)
    assert run.counts() == {"passed": 2}, run.text
    infos = {name.partition("#")[2] or name: entry["extra_info"] for name, entry in by_full_name(run).items()}
    assert (infos["download"]["ok"], infos["download"]["corrupt"]) == (8, 0)
    assert (infos["upload"]["ok"], infos["upload"]["corrupt"]) == (0, 8)


def by_full_name(run: FinishedRun) -> dict[str, dict[str, dict[str, object]]]:
    return {entry["fullname"]: entry for entry in run.document["benchmarks"]}


@pytest.mark.slow
def test_draws_are_those_of_the_runs_seed(lab: Lab) -> None:
    """Failures are random. With one sensor, they are drawn in order."""
    for name in ("sick", "same"):
        write_profile(lab, "error_rate = 0.5", name)
    lab.write("""
        from pytest_cloudbench.model import Verb

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(experiment, payloads, number):
            result = experiment.run(
                payloads.random(30), arrival=ThinkTime(0), sensors=1, ops_per_sensor=50, operation=Verb.STAT,
                detail=True,
            )
            experiment.report("drawn " + "".join(outcome[0] for outcome in result.ops["outcome"]))
    """)

    def list_draws(*options: str) -> list[str]:
        run = lab.run(*SICK, "--provider", "emulated:./same.toml", *options)
        assert run.counts() == {"passed": 4}, run.text
        return run.lines_with("drawn ")

    first, again = list_draws("--cloudbench-seed", "one"), list_draws("--cloudbench-seed", "one")
    assert first == again
    assert len(set(first)) == 4, "neither two emulators nor two experiments see the same"
    assert not set(first) & set(list_draws("--cloudbench-seed", "two"))
    assert not set(list_draws()) & set(list_draws())
