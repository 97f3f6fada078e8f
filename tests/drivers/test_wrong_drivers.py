"""The shipped conformance suite finds the mistakes of a driver, and demands no more than the driver declares."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.fleet.harness import FinishedRun, Lab, lab_in
from tests.limits import HANG_S

from .distributions import install
from .test_driver_conformance import conform
from .wrong import LIES, WRONGS

# The tests that must fail for each mistake. The sequences in random order may find it, too.
FAILING_TESTS: Mapping[str, str] = {
    # mistakes
    "LosesBytes": "round_trip digest_is_of_the_declared_algorithm overwrite_replaces_content get_from_an_offset "
    "names copy move",
    "IgnoresRanges": "get_from_an_offset any_order",
    "ListsStaleSizes": "overwrite_replaces_content any_order",
    "WrongKind": "not_found delete_removes_a_tree sixteen_threads any_order",
    "ForeignError": "not_found conflicts any_order",
    "NoCause": "not_found",
    "Swallows": "not_found any_order",
    "NotRecursive": "list_is_recursive_and_without_the_folder_itself the_root_is_listed any_order",
    "ReadsOnePage": "every_page_of_a_listing_is_read",
    "StopsWhereAFolderGoes": "list_omits_folder_removed_meanwhile",
    "MovesOverFiles": "move_onto_a_file_is_refused any_order",
    "CopiesAreLinks": "any_order",
    "SplitsElsewhere": "capabilities_make_sense_together",
    "NotForThreads": "sixteen_threads",
    "Whole": "get_gives_pieces_and_can_be_left",
    # lies about capabilities
    "share": "capabilities_make_sense_together",
    "digest": "digest_is_of_the_declared_algorithm any_order",
    "no_digest": "no_digest_is_given any_order",
    "revisions": "each_overwrite_has_a_revision_of_its_own",
    "flat": "list_of_flat_keys_yields_only_files mkdir_does_nothing any_order",
    "prefix": "missing_folder_lists_as_empty",
    "deletes_missing": "deleting_a_missing_path_is_no_error any_order",
    "copies_folders": "copy_or_move_of_a_folder_takes_all_it_holds",
    "case": "case_is_one",
    "longest": "longest_name",
    "shortest": "longest_name",
    "requests": "a_verb_sends_as_many_requests_as_are_declared",
    "splits": "a_larger_upload_takes_more_requests",
    "refused": "refused_characters_are_invalid",
}
# Mistakes that break nearly all tests. The other tests that fail for them are not listed.
WIDE = {"LosesBytes", "NotRecursive", "MovesOverFiles", "ForeignError", "flat"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("wrong")) as new_lab:
        yield new_lab


@pytest.fixture(scope="module")
def environment(lab: Lab) -> dict[str, str | None]:
    """The environment in which the distributions with the wrong drivers, and with another right one, are installed."""
    folder = install(lab.folder / "site", "wrong", {"wrong": "wrong:WrongDriver"})
    install(folder, "flat", {"flat": "flat:FlatDriver"})
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def run_all(lab: Lab, environment: dict[str, str | None], *args: str) -> FinishedRun:
    """Run the suite on all drivers at once."""
    names = ["right", *WRONGS, *LIES]
    specs = [f"wrong:objects/{name}?how={name}" for name in names]
    specs += ["flat:flat/right", "flat:flat/once?overwrites=0"]
    options = [f"--provider={spec}" for spec in specs]
    return conform(
        lab, *options, "-n", "2", "--cloudbench-seed", "1", "--tb=line", *args, env=environment, timeout_s=900
    )


def failures(run: FinishedRun) -> Mapping[str, set[str]]:
    """Return the failed tests of each driver, without ``test_`` and parameters."""
    failed_tests: dict[str, set[str]] = defaultdict(set)
    for test, driver in re.findall(r"^FAILED \S+::test_(\w+)\[\w+:\w+/(\w+)", run.text, re.M):
        failed_tests[driver].add(test)
    return failed_tests


@pytest.fixture(scope="module")
def run(lab: Lab, environment: dict[str, str | None]) -> FinishedRun:
    """A run with all tests on the right drivers, and on each wrong driver the tests that must find its mistake."""
    chosen = [
        f"(objects/{name} and ({' or '.join(f'test_{test}[' for test in list_certain(name))}))"
        for name in FAILING_TESTS
    ]
    return run_all(lab, environment, "-k", " or ".join(["objects/right", "flat:flat", *chosen]))


def list_certain(name: str) -> list[str]:
    """Return the tests that find a mistake without random sequences, or else the only test that finds it."""
    tests = FAILING_TESTS[name].split()
    return [test for test in tests if test != "any_order"] or tests


def test_every_mistake_is_listed() -> None:
    assert FAILING_TESTS.keys() == WRONGS.keys() | LIES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILING_TESTS)
def test_wrong_driver_fails_exactly_the_expected_tests(run: FinishedRun, name: str) -> None:
    assert failures(run)[name] == set(list_certain(name))


@pytest.mark.slow
def test_a_wrong_driver_fails_for_nothing_else(lab: Lab, environment: dict[str, str | None]) -> None:
    failed = failures(run_all(lab, environment))
    for name, tests in FAILING_TESTS.items():
        expected = set(tests.split())
        assert expected <= failed[name], name
        assert name in WIDE or failed[name] <= expected | {"any_order"}, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right", "once"])
def test_a_right_driver_fails_for_nothing(run: FinishedRun, name: str) -> None:
    assert failures(run)[name] == set()
    assert not run.lines_with("ERROR")
    passed = re.findall(rf"^PASSED \S+::test_(\w+)\[(\w+):\w+/{name}\b", run.text, re.M)
    assert {"any_order", "round_trip", "sixteen_threads"} <= {test for test, _ in passed}
    assert {scheme for _, scheme in passed} == ({"wrong", "flat"} if name == "right" else {"flat"})


@pytest.mark.slow
def test_undeclared_abilities_are_not_demanded(run: FinishedRun) -> None:
    """Tests of folders, streams and conflicts are skipped on a driver without these, and name the missing ability."""
    reasons = " ".join(re.findall(r"^SKIPPED .*: not declared: (.*)$", run.text, re.M))
    for word in ("folders", "streams", "revisions", "overwrites", "a conflict for a put onto a folder", "move"):
        assert word in reasons
    passed = set(re.findall(r"^PASSED \S+::test_(\w+)\[flat", run.text, re.M))
    assert {
        "list_of_flat_keys_yields_only_files",
        "mkdir_does_nothing",
        "missing_folder_lists_as_empty",
        "deleting_a_missing_path_is_no_error",
    } <= passed
    assert not {"conflicts", "get_gives_pieces_and_can_be_left", "move"} & passed


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("ci", [None, "true"])  # if CI is set, pytest shows the whole difference
def test_the_sequence_that_fails_is_shown(lab: Lab, environment: dict[str, str | None], ci: str | None) -> None:
    result = conform(lab, "--provider=wrong:objects/again?how=CopiesAreLinks", "-k", "any_order",
                    "--cloudbench-seed", "1", env={**environment, "CI": ci})  # fmt: skip
    assert result.lines_with("state.copy(")
    assert result.lines_with("state.put(")


def test_differing_content_is_reported_with_its_first_byte(lab: Lab, environment: dict[str, str | None]) -> None:
    """The report is short even where CI is set. There pytest would compare 100,000 bytes for half an hour."""
    result = conform(lab, "--provider=wrong:objects/ranges?how=IgnoresRanges", "-k", "get_from_an_offset",
                    env={**environment, "CI": "true"}, timeout_s=HANG_S)  # fmt: skip
    assert result.counts()["failed"] == 5
    assert result.lines_with("100,000 bytes where 30,000 were expected, of which the first 0 are the same")


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        "the first piece has 3145728 of 3145728 bytes: declare streams=False, or give it sooner",
        "has no cause; raise it from the library's error, or from one of your own",
        "1025 bytes took 0 requests, and one byte 0",
    ],
)
def test_report_explains_faults_of_a_driver_in_words(run: FinishedRun, message: str) -> None:
    assert run.lines_with(message)


@pytest.mark.slow
def test_nothing_is_left_by_drivers_that_can_delete(run: FinishedRun) -> None:
    remains = {
        path.relative_to(run.folder / "objects").parts[0]
        for path in (run.folder / "objects").rglob("*")
        if path.is_file()
    }
    assert remains <= {"WrongKind", "NotRecursive"}  # whose listings hide what is left
