"""Machine-readable reports of an experiment, and colours for people."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.runs import ALONE, FLEET

from .harness import FOLDER, Lab

TESTS = """
    SMALL = dict(arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)

    def test_fine(experiment, payloads, request):
        request.node.user_properties.append(("mine", 1))
        experiment.run(payloads.random(50), **SMALL)

    def test_broken(experiment, payloads):
        assert experiment.run(payloads.random(50), **SMALL)["loss_rate"] == 1

    def test_several(experiment, payloads):
        for label in ("small", "large"):
            part = experiment.run(payloads.random(50), **SMALL, store=False)
            experiment.conclude({"tue": 2.5, "recovery": None}, [1.0], stats_of="n", label=label)

    def test_other():
        pass
"""


def properties(path: str) -> dict[str, dict[str, str]]:
    cases = ElementTree.parse(path).getroot().iter("testcase")
    return {
        case.attrib["name"].partition("[")[0]: {
            element.attrib["name"]: element.attrib["value"] for element in case.iter("property")
        }
        for case in cases
    }


@pytest.mark.slow
@pytest.mark.parametrize("agents", [ALONE, FLEET])
def test_junit_has_the_metrics_of_every_experiment(agents: list[str], lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, *agents, "--junitxml=junit.xml")
    assert run.counts() == {"passed": 3, "failed": 1}, run.text
    cases = properties(str(lab.folder / "junit.xml"))
    fine = {name.removeprefix("cloudbench."): value for name, value in cases["test_fine"].items()}
    expected = {
        "provider": "folder:objects",
        "emulated": "False",
        "agents": str(len(agents) or 1),
        "ops": "6",
        "lost": "0",
    }
    expected |= {"loss_rate": "0.0", "throttled": "0", "failed": "0", "verdict": "none", "doubts": "none", "mine": "1"}
    assert {name: fine[name] for name in expected} == expected
    (stored,) = (entry for name, entry in run.entries.items() if name.startswith("test_fine"))
    assert float(fine["response_p99"]) == stored["extra_info"]["response_p99"]
    assert fine["refused_p99"] == "unknown"
    assert cases["test_broken"]["cloudbench.loss_rate"] == "0.0"
    several = cases["test_several"]
    assert [several[f"cloudbench.{label}.tue"] for label in ("small", "large")] == ["2.5", "2.5"]
    assert several["cloudbench.small.recovery"] == "unknown"
    assert cases["test_other"] == {}
    text = (lab.folder / "junit.xml").read_text()
    assert not re.search(r'value="(nan|inf|-inf|None)"', text)


def test_a_doubt_and_a_verdict_are_properties_too(lab: Lab) -> None:
    run = lab.write(TESTS).run(
        *FOLDER, "-k", "test_fine", "--max-ops", "4", "--cloudbench-fail", "loss_rate:0.5", "--junitxml=junit.xml"
    )
    assert run.status == 1
    (values,) = properties(str(lab.folder / "junit.xml")).values()
    assert values["cloudbench.verdict"] == "inconclusive"
    assert values["cloudbench.doubts"] == "--max-ops 4 is used up; 2 of 6 operations were not tried"


GATES = ("--cloudbench-fail", "loss_rate:0.5", "--cloudbench-fail", "response_p99:0")


@pytest.mark.parametrize(("colour", "env"), [("yes", {}), ("no", {}), ("auto", {"FORCE_COLOR": "1"})])
def test_gate_lines_are_coloured_if_pytest_colours_its_own(colour: str, env: dict[str, str], lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "-k", "test_fine", *GATES, f"--color={colour}", env=env)
    lines = {line for line in run.text.splitlines() if "bound" in line and not line.startswith(("E ", "FAILED"))}
    broken = next(line for line in lines if "response_p99:0:" in line and "  " in line)
    met = next(line for line in lines if "loss_rate:0.5:" in line)
    if colour == "no":
        assert "\x1b" not in run.text
    else:
        assert (met[:5], broken[:5]) == ("\x1b[32m", "\x1b[31m")


@pytest.mark.slow
def test_without_a_terminal_and_with_no_color_there_are_none(lab: Lab) -> None:
    plain = lab.write(TESTS).run(*FOLDER, "-k", "test_fine", *GATES)
    refused = lab.run(*FOLDER, "-k", "test_fine", *GATES, env={"NO_COLOR": "1", "FORCE_COLOR": None})
    assert "\x1b" not in plain.text + refused.text


def test_doubts_are_yellow(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "-k", "test_fine", "--max-ops", "4", "--color=yes")
    assert run.lines_with("\x1b[33m! folder:objects: --max-ops 4 is used up")


def test_a_gate_that_cannot_be_judged_fails_and_is_red(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "-k", "test_fine", "--max-ops", "4", *GATES[:2], "--color=yes")
    assert run.status == 1
    assert run.lines_with("\x1b[31m  folder:objects: gate loss_rate:0.5: unknown, ")
