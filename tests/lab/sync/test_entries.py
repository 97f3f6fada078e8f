"""Entries of the ``lab`` fixture: one agent measures, and all agents conclude the same.

A test skips if something is unavailable, and never passes with numbers that may be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.harness import Lab, lab_in

MEASURES = """
def test_once(lab):
    with open(HERE / "measured", "a") as file:
        file.write(f"{lab.facts.name} {lab.workdir.is_dir()} {lab.nodeid}\\n")
    value = 2.5
    for each in (1, 2):
        result = lab.conclude(
            {"completion": value * each}, [value], stats_of="known", columns=("completion",),
            label=f"n{each}", params={"each": each}, doubts=DOUBTS, versions={"tool": "7"},
        )
    lab.settle([result])
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        yield new_lab


def test_one_agent_measures_and_all_conclude(lab: Lab) -> None:
    lab.write(MEASURES.replace("DOUBTS", "[]"))
    for args in ((), ("-n", "2")):
        (lab.folder / "measured").unlink(missing_ok=True)
        run = lab.run("--client", "reference?retry=2", "--benchmark-json", "out.json", *args)
        assert run.counts() == {"passed": 1}, run.text
        lines = (lab.folder / "measured").read_text().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("reference True ")
        entries = json.loads((lab.folder / "out.json").read_text())["benchmarks"]
        assert [entry["fullname"].partition("::")[2] for entry in entries] == [
            "test_once[reference?retry=2]#n1",
            "test_once[reference?retry=2]#n2",
        ]
        assert [entry["params"]["each"] for entry in entries] == [1, 2]
        assert [entry["extra_info"]["completion"] for entry in entries] == [2.5, 5.0]
        assert {entry["extra_info"]["provider"] for entry in entries} == {"reference?retry=2"}
        assert {entry["extra_info"]["versions"]["tool"] for entry in entries} == {"7"}


@pytest.mark.slow
def test_a_gate_on_a_client_is_judged(lab: Lab) -> None:
    lab.write(MEASURES.replace("DOUBTS", "[]"))
    assert lab.run("--client", "reference", "--cloudbench-fail", "completion:6").counts() == {"passed": 1}
    run = lab.run("--client", "reference", "--cloudbench-fail", "completion:4")
    assert run.counts() == {"failed": 1}, run.text
    assert run.lines_with("completion")


@pytest.mark.slow
def test_numbers_with_doubts_are_inconclusive(lab: Lab) -> None:
    lab.write(MEASURES.replace("DOUBTS", "['link: up delay: 10 ms asked, 30 delivered']"))
    run = lab.run("--client", "reference", "-rs", "-n", "2")
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("inconclusive: link: up delay")


@pytest.mark.slow
def test_missing_link_skips_on_all_agents_with_the_reason(lab: Lab) -> None:
    lab.write(
        """
        from pytest_cloudbench.net.link import LinkUnavailable

        def test_skips(lab):
            raise LinkUnavailable("no namespaces here")
        """
    )
    run = lab.run("--client", "reference", "-rs", "-n", "2")
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("no namespaces here")


@pytest.mark.slow
def test_unknown_client_name_is_refused_with_the_known_ones(lab: Lab) -> None:
    lab.write(MEASURES.replace("DOUBTS", "[]"))
    run = lab.run("--client", "nobodys")
    assert run.status == 4
    assert run.lines_with("unknown; expected one of")
    assert not (lab.folder / "measured").exists()
