"""Downloads, lists, deletions, links, thread pools, kept files and conclusions from several runs."""

from __future__ import annotations

import pytest

from pytest_cloudbench.load.engine.operations import Deal
from pytest_cloudbench.workload.arrival import FixedInterval, ThinkTime, Threads
from tests.runs import SPREAD, Spread

from .harness import FOLDER, IDEAL, Lab, grid, keys

POOL = "arrival=Threads(5), files=12"


@pytest.mark.slow
@pytest.mark.parametrize("spread", [(), ("-n", "3")], ids=["alone", "three"])
def test_every_operation_works_on_existing_files(lab: Lab, spread: Spread) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        @pytest.mark.parametrize("verb", ["get", "stat", "list", "delete", "share"])
        def test_verb(experiment, payloads, verb):
            result = experiment.run(payloads.random(3000), {POOL}, operation=Verb(verb), detail=True)
            assert (result["ops"], result["ok"], result["errors"], result.doubts) == (12, 12, {{}}, ())
            assert result["operation"] == verb and result["threads"] == 5 and result["sensors"] is None
            assert "loss_rate" not in result.info and result["files"] is None
            assert (result["first_byte_max"] is not None) == (verb == "get")
            assert [*map(len, result.ops.values())] == [12] * 8 and set(result.ops["outcome"]) == {{"ok"}}
            assert result["throughput"] > 0 if verb == "get" else not result["throughput"]
            result.check()
    """)
    run = lab.run(*IDEAL, *spread)
    assert run.counts() == {"passed": 5}, run.text
    assert run.leftovers == []


def test_a_link_that_a_provider_does_not_offer_is_refused_in_one_line(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        def test_it(experiment, payloads):
            experiment.run(payloads.random(30), {POOL}, operation=Verb.SHARE)
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"failed": 1}
    assert run.lines_with("operation 'share': this provider's driver offers put, get, stat, list, delete")


@SPREAD
def test_files_are_handed_on_and_removed_at_the_end(lab: Lab, spread: Spread) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        def test_it(experiment, payloads):
            up = experiment.run(payloads.random(500), {POOL}, keep=True, label="up")
            half = experiment.run(on=up.files, sample=0.5, arrival=Threads(2), operation=Verb.GET, detail=True)
            assert (half["ok"], len(set(half.ops["sensor"]))) == (6, 6)
            other = experiment.run(payloads.random(500), {POOL})
            assert other["loss_rate"] == 0
            all_of_them = experiment.run(on=up.files, arrival=Threads(2), operation=Verb.DELETE)
            assert (all_of_them["ok"], all_of_them["errors"]) == (12, {{}})
    """)
    run = lab.run(*FOLDER, *spread)
    assert run.counts() == {"passed": 1}, run.text
    assert [entry["fullname"].rpartition("::")[2] for entry in run.document["benchmarks"]] == [
        f"test_it[folder:objects]#{label}" for label in ("up", 2, 3, 4)
    ]
    assert not [path for path in (run.folder / "objects").rglob("*") if path.is_file()]


def test_a_download_of_damaged_files_is_corrupt_and_of_sound_ones_is_not(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        def test_it(experiment, payloads, fleet):
            up = experiment.run(payloads.random(500), {POOL}, keep=True)
            damaged = sorted((HERE / "objects").rglob("s00003*"))[0]
            damaged.write_bytes(bytes(500))
            sorted((HERE / "objects").rglob("s00004*"))[0].unlink()
            down = experiment.run(on=up.files, arrival=Threads(3), operation=Verb.GET, detail=True)
            wrong = {{s: k for s, k in zip(down.ops["sensor"], down.ops["kind"]) if k}}
            assert wrong == {{3: "corrupt", 4: "not_found"}} and down["ok"] == 10 and down["corrupt_rate"] == 1 / 12
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 1}, run.text


def test_a_stat_of_damaged_files_is_corrupt_and_of_sound_ones_is_not(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        def test_it(experiment, payloads, fleet):
            up = experiment.run(payloads.random(500), {POOL}, keep=True)
            sorted((HERE / "objects").rglob("s00003*"))[0].write_bytes(bytes(500))
            sorted((HERE / "objects").rglob("s00004*"))[0].write_bytes(bytes(499))
            stat = experiment.run(on=up.files, arrival=Threads(3), operation=Verb.STAT, detail=True)
            wrong = {{s: k for s, k in zip(stat.ops["sensor"], stat.ops["kind"]) if k}}
            assert wrong == {{3: "corrupt", 4: "corrupt"}} and stat["ok"] == 10 and stat["throughput"] == 0
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 1}, run.text


def test_keywords_replace_fields_of_a_load(lab: Lab) -> None:
    lab.write("""
        from pytest_cloudbench import EntryOptions, Load, Threads, Verb

        def own_notes(entry):
            return [note for note in entry.notes if not note.startswith("this machine was busy")]

        def test_it(experiment, payloads):
            load = Load(payloads.random(500), arrival=Threads(3), files=12, keep=True)
            up = experiment.run(load, EntryOptions("up", notes=("first",)))
            again = EntryOptions("down")
            down = experiment.run(load, again, on=up.files, operation=Verb.GET, files=5, notes=["second"])
            assert (up["operation"], up["ok"], own_notes(up)) == ("put", 12, ["first"])
            assert (down["operation"], down["ok"], own_notes(down)) == ("get", 5, ["second"])
            with pytest.raises(TypeError, match="zebra"):
                experiment.run(load, zebra=1)
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    assert sorted(run.entries) == ["test_it#down[folder:objects]", "test_it#up[folder:objects]"]


@pytest.mark.slow
@SPREAD
def test_kept_files_are_removed_when_a_test_says_so(lab: Lab, spread: Spread) -> None:
    lab.write(f"""
        from pytest_cloudbench.model import UsageError
        from pytest_cloudbench.workload.arrival import Threads

        def test_it(experiment, payloads):
            stored = lambda: sum(path.is_file() for path in (HERE / "objects").glob("*/*/*"))
            first = experiment.run(payloads.random(500), {POOL}, keep=True, mkdir=False, verify=False)
            second = experiment.run(payloads.random(500), {POOL}, keep=True, mkdir=False, verify=False)
            assert (first["ok"], second["ok"], stored()) == (12, 12, 24)
            experiment.agent.gather("all have looked")
            assert experiment.remove(first.files)
            assert stored() == 12
            experiment.agent.gather("all have looked again")
            with pytest.raises(UsageError, match="not kept by a run of this test, or has been removed"):
                experiment.remove(first.files)
    """)
    run = lab.run(*FOLDER, *spread)
    assert run.counts() == {"passed": 1}, run.text
    assert not [path for path in (run.folder / "objects").rglob("*") if path.is_file()]


@SPREAD
def test_a_removal_that_failed_is_tried_again(lab: Lab, spread: Spread) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import CloudError, ErrorKind

        def down(self, path):
            raise CloudError(ErrorKind.SERVER, "delete", path)

        def test_it(experiment, payloads, provider, monkeypatch):
            up = experiment.run(payloads.random(500), {POOL}, keep=True)
            with monkeypatch.context() as patch:
                patch.setattr(type(provider.driver), "delete", down)
                assert not experiment.remove(up.files)
            assert experiment.remove(up.files)
            assert not [path for path in (HERE / "objects").glob("*/*/*") if path.is_file()]
    """)
    run = lab.run(*FOLDER, *spread)
    assert run.counts() == {"passed": 1}, run.text


@SPREAD
def test_every_report_of_a_test_is_shown_and_its_file_written(lab: Lab, spread: Spread) -> None:
    lab.write("""
        def test_it(experiment, payloads):
            experiment.run(payloads.random(9), arrival=ThinkTime(0), sensors=1)
            experiment.report("the first text", "first.txt", "1")
            experiment.report("the second text", "second.txt", "2")
    """)
    run = lab.run(*FOLDER, *spread)
    assert run.counts() == {"passed": 1}, run.text
    assert [len(run.lines_with(f"the {number} text")) for number in ("first", "second")] == [1, 1], run.text
    assert [path.read_text() for name in ("first", "second") for path in run.folder.rglob(f"{name}.txt")] == ["1", "2"]


@SPREAD
@pytest.mark.parametrize("load", [POOL, "arrival=ThinkTime(0), sensors=4, ops_per_sensor=3"], ids=["pool", "sensors"])
def test_files_that_a_budget_prevented_are_not_handed_on(lab: Lab, spread: Spread, load: str) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        def test_it(experiment, payloads):
            up = experiment.run(payloads.random(500), {load}, keep=True)
            assert (up["ops"], len(up.files.members)) == (4, 4)
            down = experiment.run(on=up.files, arrival=Threads(2), operation=Verb.GET)
            assert (down["ops"], down["ok"]) == (4, 4)
    """)
    run = lab.run(*FOLDER, *spread, "--max-ops", "4")
    assert run.counts() == {"passed": 1}, run.text


def test_a_run_that_a_budget_prevented_as_a_whole_hands_on_no_file(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.model import Verb
        from pytest_cloudbench.workload.arrival import Threads

        def test_it(experiment, payloads):
            up = experiment.run(payloads.random(500), {POOL}, keep=True)
            assert (up["ops"], list(up.files.members)) == (0, [])
            half = experiment.run(on=up.files, sample=0.5, arrival=Threads(2), operation=Verb.GET)
            assert half["ops"] == 0
    """)
    run = lab.run(*FOLDER, "--max-ops", "0")
    assert run.counts() == {"passed": 1}, run.text


def test_a_scratch_folder_that_cannot_be_prepared_is_removed(lab: Lab) -> None:
    lab.write("""
        import pytest
        from pytest_cloudbench.drivers.folder import FolderDriver
        from pytest_cloudbench.model import CloudError, ErrorKind, ProviderSpec
        from pytest_cloudbench.providers import Provider

        class Unprepared(FolderDriver):
            def prepare(self, folder):
                assert self.stat(folder).is_folder
                raise CloudError(ErrorKind.AUTH, "prepare", folder)

        @pytest.fixture
        def provider(tmp_path):
            return Provider("own:x", Unprepared.connect(ProviderSpec.parse(f"folder:{tmp_path}"), None, {}))

        def test_it(experiment, payloads, tmp_path):
            with pytest.raises(CloudError, match="prepare"), experiment.scratch(payloads.random(1)):
                raise AssertionError
            assert list(tmp_path.glob("*/*")) == []
    """)
    run = lab.run()
    assert run.counts() == {"passed": 1}, run.text


def test_an_outage_is_measured_and_not_waited_for(lab: Lab) -> None:
    (lab.folder / "down.toml").write_text(
        '[meta]\nname = "down"\napi = "dropbox"\ndescription = "down"\n[faults]\nerror_rate = 1.0\n'
    )
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import CloudError, ErrorKind

        def down(path):
            raise CloudError(ErrorKind.SERVER, "delete", path)

        def test_it(experiment, payloads, provider):
            result = experiment.run(payloads.random(500), {POOL}, keep=True, mkdir=False, verify=False)
            assert (result["ops"], result["errors"]) == (12, {{"server": 12}})
            provider.driver.delete = down  # the emulator's own faults spare a removal
            assert not experiment.remove(result.files)
            provider.driver.delete = lambda path: None
    """)
    run = lab.run("--provider", "emulated:./down.toml")
    assert run.counts()["passed"] == 1, run.text
    assert run.duration_s < 30


def test_a_listing_that_breaks_off_is_begun_again(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.load.engine import unmeasured
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import CloudError, ErrorKind

        def test_it(experiment, payloads, provider, monkeypatch):
            monkeypatch.setattr(unmeasured, "_LISTING_FILES", 3)
            whole, throttled = provider.driver.list, []

            def list_throttled_once(folder):
                for number, entry in enumerate(whole(folder)):
                    if number == 7 and not throttled:
                        throttled.append(entry)
                        raise CloudError(ErrorKind.THROTTLED, "list", folder, retry_after_s=0.01)
                    yield entry

            monkeypatch.setattr(provider.driver, "list", list_throttled_once)
            result = experiment.run(payloads.random(500), {POOL})
            assert (len(throttled), result["files"], result["lost"], result["listed_twice"]) == (1, 12, 0, 0)
            result.check()
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 1}, run.text


@pytest.mark.slow
def test_prepared_files_count_towards_max_ops(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.model import Verb

        def test_it(experiment, payloads):
            result = experiment.run(payloads.random(30), {POOL}, operation=Verb.GET)
            assert result["ops"] in (0, 3) and any("--max-ops 15 is used up" in doubt for doubt in result.doubts)
    """)
    for spread in ((), ("-n", "2")):
        run = lab.run(*FOLDER, "--max-ops", "15", *spread)
        assert run.counts() == {"passed": 1}, run.text


@pytest.mark.slow
def test_a_conclusion_takes_true_for_yes(lab: Lab) -> None:
    lab.write("""
        import pytest

        @pytest.mark.parametrize(("answer", "number"), [(True, "1"), (False, "0"), (None, "None")])
        def test_answer(experiment, answer, number):
            result = experiment.conclude({"is_secure": answer}, [1.0], stats_of="nothing", columns=["is_secure"])
            assert repr(result["is_secure"]) == number
    """)
    run = lab.run(*FOLDER, "-n2", "--cloudbench-fail", "is_secure:1")
    assert run.lines_with("gate is_secure:1: 0 breaks the bound >= 1"), run.text
    assert run.counts() == {"passed": 1, "failed": 2}, "no is broken, and unknown is not yes"


def test_a_conclusion_is_one_entry_with_the_doubts_of_its_parts(lab: Lab) -> None:
    lab.write("""
        import datetime
        from pytest_cloudbench.workload.arrival import Threads
        from pytest_cloudbench.judge.expect import Expectation

        def claim(at_most):
            return Expectation("folder:objects", "knee_threads", None, at_most, "a test", datetime.date(2026, 1, 1))

        def parts(experiment, payloads):
            return [experiment.run(payloads.random(30), arrival=Threads(n), files=4, store=False) for n in (1, 2)]

        def test_good(experiment, payloads):
            times = [part["elapsed"] for part in parts(experiment, payloads)]
            told = dict(stats_of="total time", columns=["knee_threads"], extra={"levels": [1, 2]}, expect=[claim(4)])
            experiment.conclude({"knee_threads": 2}, times, **told).check()

        def test_each_run_belongs_to_one_conclusion(experiment, payloads):
            first, second = parts(experiment, payloads)
            of_one = experiment.conclude({}, [1.0], stats_of="x", of=[first], label="one")
            rest = experiment.conclude({}, [1.0], stats_of="x", label="rest")
            none = experiment.conclude({}, [1.0], stats_of="x", label="none")
            both = experiment.conclude({}, [1.0], stats_of="x", of=[first, second], label="both")
            assert [each["ops_files"] for each in (of_one, rest, none, both)] == [
                [first["ops_file"]], [second["ops_file"]], [], [first["ops_file"], second["ops_file"]]
            ]

        def test_bad(experiment, payloads):
            experiment.conclude({"knee_threads": 2}, [1.0], stats_of="nothing", expect=[claim(1)]).check()

        def test_doubtful(experiment, payloads):
            experiment.conclude({"knee_threads": 2}, [1.0], stats_of="x", expect=[claim(4)], doubts=["sick"]).check()
    """)
    run = lab.run(*FOLDER, "--cloudbench-fail", "knee_threads:3", "-n", "2")
    assert run.counts() == {"passed": 2, "failed": 2}, run.text
    good = run.info("test_good[folder:objects]")
    assert (good["knee_threads"], good["levels"], good["ops"], len(good["ops_files"])) == (2, [1, 2], 8, 2)
    assert (good["stats_of"], len(good["expectations"])) == ("total time", 2)
    assert run.lines_with("knee_threads")
    assert run.lines_with("! folder:objects: sick")


def test_gate_on_a_metric_of_no_experiment_fails_the_session(lab: Lab) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads

        def test_it(experiment, payloads):
            experiment.run(payloads.random(30), {POOL}).check()
    """)
    run = lab.run(*FOLDER, "--cloudbench-fail", "knee_threads:3")
    assert (run.counts(), run.status) == ({"passed": 1}, 1)
    assert run.lines_with("gate knee_threads:3: no experiment in this run has that metric")
    assert lab.run(*FOLDER, "--cloudbench-fail", "loss_rate:0").status == 0


@pytest.mark.parametrize("arguments", ["arrival=Threads(2), sensors=3", "arrival=Threads(2)", "arrival=ThinkTime(1)"])
def test_arguments_that_do_not_fit_are_refused(lab: Lab, arguments: str) -> None:
    lab.write(f"""
        from pytest_cloudbench.workload.arrival import Threads, ThinkTime

        def test_it(experiment, payloads):
            experiment.run(payloads.random(30), {arguments})
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"failed": 1}
    assert run.lines_with("experiment.run: "), run.text


def test_a_pool_shares_files_among_threads_and_agents() -> None:
    for arrival, files in ((Threads(7), 40), (Threads(3), 2), (Threads(1), 5), (Threads(50), 50)):
        for agents in (1, 2, 4, 9):
            deal = Deal(arrival, files, 1)
            shares = [deal.agent_files(index, agents) for index in range(agents)]
            assert sorted(file for part in shares for file in part) == [(file, 0) for file in range(files)]
            threads = sorted(thread for index in range(agents) for thread in deal.agent_threads(index, agents))
            assert threads == list(range(min(arrival.count, files)))
            assert all(bool(part) == bool(deal.agent_threads(index, agents)) for index, part in enumerate(shares))
    for deal in (Deal(FixedInterval(1), 3, 2), Deal(ThinkTime(1), 3, 2)):
        assert sorted(deal.agent_files(0, 2) + deal.agent_files(1, 2)) == grid(3, 2)


def test_threads_pause_and_take_the_next_file_as_soon_as_they_are_free(lab: Lab) -> None:
    lab.write("""
        from pytest_cloudbench.workload.arrival import Threads

        def test_it(experiment, payloads):
            slow = experiment.run(payloads.random(30), arrival=Threads(2, pause_s=0.1), files=6, detail=True)
            assert 0.2 <= slow["elapsed"] < 1
            late = experiment.run(payloads.random(9), arrival=Threads(2, 0, 0.3, 0.2), files=2, detail=True)
            assert all(0.2 <= start_s <= 1 for start_s in late.ops["start_s"])  # from the start of the run
            assert late["lateness_max"] < 0.2
    """)
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    assert keys(run.records()["test_it"])


def test_a_run_notes_the_limit_on_operations_in_flight_once_for_all_agents(lab: Lab) -> None:
    lab.write(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def little_memory(monkeypatch):
            monkeypatch.setattr("pytest_cloudbench.load.engine.engine.count_fitting_threads", lambda agents: 2)
        """,
        name="conftest.py",
    )
    lab.write("""
        def test_put(experiment, payloads):
            experiment.run(payloads.random(100), arrival=FixedInterval(0.0), sensors=60)
    """)
    run = lab.run(*IDEAL, "-n2")
    notes = [note for note in run.info("test_put[emulated:ideal]")["notes"] if "in flight" in note]
    assert len(notes) == 1, run.text
    assert notes[0].startswith("at most 2 operations were in flight in one agent")
