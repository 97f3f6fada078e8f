"""One report for each experiment, whether it failed on all agents, on some, or before the test began."""

from __future__ import annotations

import re

import pytest

from .harness import FOLDER, FinishedRun, Lab, outcomes

SMALL = "payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2"

TESTS = f"""
    @pytest.fixture
    def fragile(fleet):
        if fleet.name == "gw1":
            raise RuntimeError("the fixture broke")

    @pytest.fixture(scope="module")
    def fragile_module(fleet):
        if fleet.name == "gw2":
            raise RuntimeError("the module's fixture broke")

    @pytest.fixture
    def fragile_end(fleet):
        yield
        if fleet.name == "gw1":
            raise RuntimeError("the end broke")

    class Odd:
        size_bytes = 50
        def __init__(self, fleet, payload, who):
            self.fleet, self.payload, self.who = fleet, payload, who
        def content(self, sensor, seq):
            if self.fleet.name in self.who and seq == 1:
                raise RuntimeError("the payload broke")
            return self.payload.content(sensor, seq)

    def test_same(experiment, payloads):
        result = experiment.run({SMALL})
        assert result["ops"] == 13

    def test_one(experiment, payloads, fleet):
        experiment.run({SMALL})
        assert fleet.name != "gw1", "only here"

    def test_leader(experiment, payloads, fleet):
        experiment.run({SMALL})
        assert fleet.name != "gw0", "only the leader"

    def test_two(experiment, payloads, fleet):
        experiment.run({SMALL})
        if fleet.index:
            pytest.fail("not the leader")

    def test_setup(experiment, payloads, fragile):
        experiment.run({SMALL})

    def test_module_setup(experiment, payloads, fragile_module):
        experiment.run({SMALL})

    def test_teardown(experiment, payloads, fragile_end):
        experiment.run({SMALL})

    def test_bug_elsewhere(experiment, payloads, fleet):
        odd = Odd(fleet, payloads.random(50), ["gw1"])
        experiment.run(odd, arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2)

    def test_bug_in_leader(experiment, payloads, fleet):
        odd = Odd(fleet, payloads.random(50), ["gw0"])
        experiment.run(odd, arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2)

    def test_bug_everywhere(experiment, payloads, fleet):
        odd = Odd(fleet, payloads.random(50), ["gw0", "gw1", "gw2"])
        experiment.run(odd, arrival=ThinkTime(0.01), sensors=6, ops_per_sensor=2)

    def test_skipped_by_all(experiment):
        pytest.skip("not today")

    def test_skipped_by_one(experiment, payloads, fleet):
        if fleet.name == "gw1":
            pytest.skip("not on this one")
        experiment.run({SMALL})

    @pytest.mark.skip(reason="never")
    def test_skip_mark(experiment):
        pass

    @pytest.mark.xfail(reason="known")
    def test_xfail(experiment, payloads):
        experiment.run({SMALL})
        assert False

    @pytest.mark.parametrize("n", [1, 2])
    def test_fine(experiment, payloads, n):
        experiment.run({SMALL}).check()
        experiment.run({SMALL}).check()
"""


def section(run: FinishedRun, test: str) -> str:
    """Return the terminal's section about one failed test."""
    parts = re.split(r"^_{4,} (?:ERROR at \w+ of )?(\S+?)(?:\[\S*\])? _{4,}$", run.text, flags=re.M)
    sections = [text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == test]
    assert len(sections) == 1, f"{test} is shown {len(sections)} times"
    return sections[0].partition("\n====")[0]


def test_failures_are_merged_into_one_report(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "-n", "3", "-rA", "-ocloudbench_patience=20")
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert run.duration_s < 45, "nobody waited for an agent that would never come"
    assert "INTERNALERROR" not in run.text
    assert "sign of life" not in run.text
    counts = run.counts()
    assert (counts["skipped"], counts["xfailed"]) == (2, 1)
    same = section(run, "test_same")
    assert same.count("assert 12 == 13") == 1
    assert same.count("(the same on 3 of 3 agents)") == 1
    assert "on agent" not in same
    assert section(run, "test_one").count("on agent gw1:") == 1
    assert "AssertionError: only here" in section(run, "test_one")
    leader = section(run, "test_leader")
    assert "AssertionError: only the leader" in leader
    assert "on agent gw0" in leader, "a reader must see that it was one of three"
    two = section(run, "test_two")
    assert two.count("on agent gw1, gw2:") == 1
    assert two.count("E           Failed: not the leader") == 1
    assert "RuntimeError: the fixture broke" in section(run, "test_setup")
    assert "on agent gw1" in section(run, "test_setup")
    assert "RuntimeError: the module's fixture broke" in section(run, "test_module_setup")
    assert "on agent gw2" in section(run, "test_module_setup")
    assert "RuntimeError: the end broke" in section(run, "test_teardown")
    assert "RuntimeError: the payload broke" in section(run, "test_bug_elsewhere")
    assert "on agent gw1" in section(run, "test_bug_elsewhere")
    assert "RuntimeError: the payload broke" in section(run, "test_bug_in_leader")
    assert section(run, "test_bug_everywhere").count("(the same on 3 of 3 agents)") == 1
    counts_by_outcome = outcomes(run.text)
    assert counts_by_outcome["PASSED"] == 3, "test_skipped_by_one and test_fine"
    assert counts_by_outcome["FAILED"] + counts_by_outcome["ERROR"] == 10
    assert {f"test_fine[folder:objects-{n}]" for n in (1, 2)} <= set(run.entries)
    assert {entry["fullname"] for entry in run.entries.values()} >= {
        "test_it.py::test_fine[folder:objects-1]#2",
    } or any(entry["fullname"].endswith("#2") for entry in run.document["benchmarks"])
    assert list((lab.folder / "objects").rglob("*.bin")) == [], "also a failed experiment cleans up"


@pytest.mark.slow
def test_the_same_failures_without_xdist(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "-rA", "-k", "same or fine or skipped or xfail or bug_everywhere")
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert section(run, "test_same").count("assert 12 == 13") == 1
    assert "agents)" not in section(run, "test_same")


OWN = """
    import pytest
    from pytest_cloudbench.drivers.base import Driver
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.model import Capabilities, CloudError, Entry, ErrorKind, Verb

    class Memory:
        capabilities = Capabilities(digest=None, verbs=frozenset({Verb.PUT, Verb.LIST, Verb.DELETE}), via="files")

        def __init__(self, shared):
            self.shared = shared  # a folder of empty files named after sizes, so that all agents see them
        def versions(self):
            return {"memory": "7"}
        def put(self, path, content):
            name = path.rpartition("/")[2]
            if name.startswith("s00003"):
                raise CloudError(ErrorKind.THROTTLED, "put", path, retry_after_s=2.5)
            (self.shared / name).write_bytes(content.read(0, content.size_bytes))
            return Entry(path, content.size_bytes)
        def list(self, folder):
            for file in self.shared.glob("*.bin"):
                yield Entry(f"{folder}/{file.name}", file.stat().st_size)
        def delete(self, path):
            for file in self.shared.glob("*.bin"):
                file.unlink()
        def mkdir(self, path):
            self.shared.mkdir(exist_ok=True)
        def close(self):
            (self.shared / f"closed-{__import__('os').getpid()}").touch()

    @pytest.fixture(scope="session")
    def provider(request):
        driver = Memory(request.config.rootpath / "own")
        yield Provider("own:memory", driver)
        driver.close()
"""


@pytest.mark.slow
def test_a_provider_of_ones_own(lab: Lab) -> None:
    lab.write(OWN, "conftest.py").write(f"""
        def test_own(experiment, payloads):
            result = experiment.run({SMALL})
            result.check()
            assert (result["ops"], result["throttled"], result["loss_rate"]) == (12, 2, 2 / 12)
    """)
    run = lab.run("-n", "2", "--cloudbench-fail", "throttled_rate:0.2")
    assert run.status == 0, run.text
    assert run.leftovers == []
    (entry,) = run.document["benchmarks"]
    info = entry["extra_info"]
    assert info["provider"] == "own:memory"
    assert info["versions"]["memory"] == "7"
    assert info["emulated"] is False
    assert info["errors"] == {"throttled": 2}
    assert "sizes were compared, not content" in run.text
    assert "own:memory: about 12 operations, 600 bytes up" in run.text, "a real service is announced"
    assert len(list((lab.folder / "own").glob("closed-*"))) == 2


def test_a_failed_assertion_shows_no_insides_of_the_experiment(lab: Lab) -> None:
    run = lab.write(f"""
        def test_it(experiment, payloads):
            assert experiment.run({SMALL})["loss_rate"] == 1
    """).run(*FOLDER)
    assert run.counts() == {"failed": 1}
    assert run.lines_with("experiment = <experiment of test_it[folder:objects]>"), run.text


def test_a_conclusion_shows_all_metrics_if_its_test_names_no_columns(lab: Lab) -> None:
    run = lab.write("""
        def test_it(experiment):
            experiment.conclude({"size": 2.5, "tue": 3.0}, [1.0], stats_of="nothing")

        def test_nothing(experiment):
            experiment.conclude({}, [1.0], stats_of="nothing", extra={"rounds": [1]})
    """).run(*FOLDER)
    assert run.counts() == {"passed": 2}
    (number,) = [number for number, line in enumerate(run.text.splitlines()) if line.split() == ["size", "tue"]]
    assert run.text.splitlines()[number + 2].split() == ["2.5", "3"]
    assert "\n\n\n" not in run.text
