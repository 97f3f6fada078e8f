"""The ``lab`` fixture with ``--client``: entries, skips and captures on request, with and without workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.net.capture import read_comment, walk
from tests.fleet.harness import FinishedRun, Lab, lab_in
from tests.runs import ALONE, FLEET

pytestmark = pytest.mark.usefixtures("can_link", "can_capture")

TEST = """
from pytest_cloudbench.lab.detect import Step

def test_copy(lab):
    new, copy = lab.measure([Step("new", 200_000), Step("copy")])
    share = copy.up_bytes / new.up_bytes
    lab.conclude(
        {"tue": share, "deduplication": int(share < 0.1)}, [copy.duration_s], stats_of="seconds",
        columns=("tue", "told"), extra={"told": f"{share:.0%}"}, published={"source": "nobody"},
    ).check()
"""
EXPECTED = """
[[expect]]
provider = "reference?deduplication=1"
metric = "deduplication"
at_least = 1
source = "its settings"
date = 2026-11-20
[[expect]]
provider = "reference"
metric = "deduplication"
at_least = 1
source = "somebody who was wrong"
date = 2026-11-20
"""
BOTH_CLIENTS = ("--client", "reference", "--client", "reference?deduplication=1")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        new_lab.write(TEST)
        new_lab.write(EXPECTED, "expected.toml")
        yield new_lab


def check_entries(run: FinishedRun) -> None:
    """Check that one client deduplicates and the other does not, each as configured."""
    assert run.counts() == {"passed": 1, "failed": 1}, run.text
    plain, saving = run.info("test_copy[reference]"), run.info("test_copy[reference?deduplication=1]")
    assert (plain["deduplication"], saving["deduplication"]) == (0, 1)
    assert plain["tue"] > 0.9
    assert saving["told"] == f"{saving['tue']:.0%}"
    assert saving["provider"] == "reference?deduplication=1"
    for deviation in saving["setting"]["link"]["delivered"]["off"]:  # on a busy machine; the entry reports it
        assert f"the link did not deliver what was asked: {deviation}" in saving["notes"]
    assert any("somebody who was wrong" in line for line in plain["expectations_unmet"])
    assert run.lines_with("client and server are on this machine")
    assert run.leftovers == []
    assert len(list(run.folder.rglob("observations.json"))) == 2
    assert not list(run.folder.rglob("results/**/*.pcapng")), "captures hold what was sent: on request only"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("workers", [ALONE, FLEET])
def test_entries_are_made_and_judged(lab: Lab, workers: tuple[str, ...]) -> None:
    check_entries(lab.run(*BOTH_CLIENTS, *workers, "-ocloudbench_expectations=expected.toml"))


@pytest.mark.slow
def test_captures_are_kept_on_request(lab: Lab) -> None:
    run = lab.run("--client", "reference", "-ocloudbench_keep_captures=true")
    assert run.counts() == {"passed": 1}, run.text
    (path,) = run.folder.rglob("results/**/*.pcapng")
    comment = read_comment(walk(path.read_bytes()).comments)
    assert comment is not None
    assert comment["steps"] == ["new", "copy"]


def test_a_lab_ends_although_its_results_cannot_be_stored(lab: Lab) -> None:
    lab.write("""
        from pathlib import Path

        from pytest_cloudbench.lab.detect import Step

        def test_own_client(lab):
            lab.rebuild()
            lab.measure([Step("new", 5_000)])
            Path("results").touch()
    """)
    run = lab.run("--client", "reference", "--basetemp=temporary")
    assert run.lines_with("choose another place with --cloudbench-results"), run.text
    assert run.leftovers == []
    assert list((run.folder / "temporary").glob("lab*")) == []


def test_missing_client_is_skipped_with_its_install_command(lab: Lab) -> None:
    lab.write(
        'name = "none"\ntestbed = "none"\n[sync]\ncommand = ["no-such-program"]\n[verify]\nfolder = "{stored}"\n',
        "none.toml",
    )
    run = lab.run("--client", "./none.toml", "-rs")
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("no-such-program is not installed: tools/testbed install none")


SILENT = '[sync]\ncommand = ["true"]\n'


@pytest.mark.parametrize(
    ("client", "arguments", "hint"),
    [
        ('[sync]\ncommand = ["no-such-program"]\n', (), "cloudbench: 1 skipped test: -rs says why"),
        (SILENT, ("-n", "2"), "cloudbench: 1 skipped test: -rs says why"),
        (SILENT, ("-rs",), ""),
        (SILENT, ("-ra",), ""),
    ],
)
def test_a_skip_without_a_visible_reason_has_a_hint(
    lab: Lab, client: str, arguments: tuple[str, ...], hint: str
) -> None:
    lab.write(f'name = "mine"\n{client}', "mine.toml")
    run = lab.run("--client", "./mine.toml", *arguments)
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("says why") == ([hint] if hint else []), run.text


def test_skips_of_tests_without_our_fixtures_have_no_hint(lab: Lab) -> None:
    lab.write("import pytest\ndef test_other(): pytest.skip('for another reason')")
    run = lab.run(store=False)
    assert run.counts() == {"skipped": 1}, run.text
    assert not run.lines_with("says why")


def test_a_client_with_options_and_a_provider_name_a_test_together(lab: Lab) -> None:
    lab.write("def test_both(lab, provider): pass")
    clients = ("--client", "reference?settle_s=1", "--client", "reference")
    run = lab.run(*clients, "--provider", "folder:objects", "--collect-only", "-q", store=False)
    assert run.lines_with("::test_both[reference?settle_s=1-folder:objects]"), run.text
    assert run.lines_with("::test_both[reference-folder:objects]"), run.text


@pytest.mark.parametrize(
    ("client", "problem"),
    [("nosuch", "client 'nosuch': unknown; expected one of"), ("./none.toml", "none.toml: cannot be read")],
)
def test_unknown_client_is_refused_once_before_anything_starts(lab: Lab, client: str, problem: str) -> None:
    lab.write("def test_one(lab): pass\ndef test_other(lab): pass")
    run = lab.run("--client", client)
    assert (run.status, len(run.lines_with(problem))) == (4, 1), run.text
    assert not run.lines_with("Traceback")
