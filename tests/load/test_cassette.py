"""Cassettes: recorded on an account, replayed without one; scrubbed; and never taken for a measurement.

The account is a real SDK's, whose requests reach the emulator through its proxy, under the provider's real names.
"""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start
from pytest_cloudbench.load.cassette import check_options, scrubbed
from pytest_cloudbench.model import UsageError

from ..fleet.harness import Ended, Lab, lab_in

STORY = """
    from pytest_cloudbench.model import CloudError

    def test_story(experiment, provider, payloads):
        result = experiment.run(payloads.random(2000), arrival=FixedInterval(0.01), sensors=3, ops_per_sensor=2)
        result.check()
        assert (result["ok"], result["lost"]) == (6, 0)
        with pytest.raises(CloudError, match="not_found"):
            provider.driver.stat("/nothing")
        assert provider.driver.space()[1] > 0
"""
NOT_THERE = dict.fromkeys(("HTTPS_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "CLOUDBENCH_DROPBOX_ACCESS_TOKEN"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as made:
        yield made.write(STORY)


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start("ideal") as running:
        yield running


def record(lab: Lab, emulator: EmulatorService, *more: str) -> Ended:
    own = emulator.endpoint
    env = {
        "HTTPS_PROXY": own.proxy, "REQUESTS_CA_BUNDLE": own.ca_file,
        "CLOUDBENCH_DROPBOX_ACCESS_TOKEN": own.credentials["access_token"],
        "CI": "true",  # where pytest shows all of a difference: two long bodies took minutes
    }  # fmt: skip
    options = ("--provider", "dropbox", "--cloudbench-yes", "--cloudbench-cassette", "record", "tape.json")
    return lab.run(*options, *more, env=env)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, emulator: EmulatorService) -> Ended:
    """One recording for all tests."""
    with lab_in(tmp_path_factory.mktemp("recorded")) as made:
        run = record(made.write(STORY), emulator)
    assert run.status == 0, run.text
    return run


@pytest.fixture
def tape(lab: Lab, recorded: Ended) -> Path:
    return Path(shutil.copy(recorded.folder / "tape.json", lab.folder))


def replay(lab: Lab, *more: str) -> Ended:
    return lab.run("--provider", "dropbox", "--cloudbench-cassette", "replay", "tape.json", *more, env=NOT_THERE)


def test_what_was_recorded_is_replayed_without_account_or_network(
    lab: Lab, emulator: EmulatorService, recorded: Ended, tape: Path
) -> None:
    before = emulator.control(get="stats")["stats"]
    replayed = replay(lab)
    assert replayed.status == 0, replayed.text
    after = emulator.control(get="stats")["stats"]
    assert {**after, "cpu_s": 0} == {**before, "cpu_s": 0}, "nothing was sent"
    info = replayed.info("test_story[dropbox]")
    assert (info["ok"], info["lost"]) == (6, 0)
    assert "replayed from a cassette: nothing was measured" in info["doubts"]
    assert "recorded into a cassette" in " ".join(recorded.info("test_story[dropbox]")["doubts"])


def test_another_behaviour_is_no_replay(lab: Lab, tape: Path) -> None:
    lab.write(STORY.replace('stat("/nothing")', 'stat("/something-else")'))
    replayed = replay(lab)
    assert replayed.status == 1, replayed.text


def test_nothing_secret_is_in_the_file(emulator: EmulatorService, tape: Path) -> None:
    text = tape.read_text()
    assert emulator.endpoint.credentials["access_token"] not in text
    assert not re.search(r"(?i)authorization|bearer|sl\.emulated|cookie", text)
    assert len(json.loads(text)["interactions"]) > 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dist": "load"}, "works in one process; leave -n out"),
        ({"cloudbench_fail": ["loss_rate:0.1"]}, "a replay measures nothing: no gate"),
        ({"benchmark_autosave": True}, "a replay measures nothing"),
        ({"benchmark_compare": ""}, "a replay measures nothing"),
        ({"cloudbench_cassette": ["play", "tape.json"]}, "expected record FILE or replay FILE"),
    ],
)
def test_gates_comparisons_and_workers_are_refused(options: dict[str, Any], told: str) -> None:
    given = {"cloudbench_cassette": ["replay", "tape.json"], "dist": "no", "cloudbench_fail": [], **options}
    with pytest.raises(UsageError, match=told):
        check_options(Namespace(**given))


def test_a_gate_on_a_replay_ends_the_session(lab: Lab, tape: Path) -> None:
    run = replay(lab, "--cloudbench-fail", "loss_rate:0.1")
    assert run.status == 4, run.text
    assert "a replay measures nothing" in run.text


def test_files_that_are_none_are_refused(lab: Lab) -> None:
    assert "expected a cassette" in replay(lab).text
    (lab.folder / "tape.json").write_text("{}")
    assert "expected a file that --cloudbench-cassette record wrote" in replay(lab).text
    run = lab.run("--provider", "emulated:ideal", "--cloudbench-cassette", "record", "tape.json")
    assert "expected one --provider, and one that needs an account" in run.text


def test_large_bodies_are_refused_and_no_file_is_kept(lab: Lab, emulator: EmulatorService) -> None:
    lab.write(STORY.replace("random(2000)", "random(70_000)"))
    run = record(lab, emulator)
    assert run.status == 1, run.text
    assert "a body of 70,000 bytes is above 65,536; use smaller files; no file is kept" in run.text
    assert not (lab.folder / "tape.json").exists()


def test_a_driver_whose_requests_vcrpy_cannot_see_is_found_out(lab: Lab) -> None:
    (lab.folder / "objects").mkdir()
    run = lab.write(STORY).run(
        "--provider", "folder:objects", "--cloudbench-cassette", "record", "tape.json", "-k", "story"
    )
    assert run.status == 1, run.text
    assert "nothing was recorded" in run.text
    assert not (lab.folder / "tape.json").exists()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a=b&refresh_token=abc-1&client_secret=xyz", "a=b&refresh_token=scrubbed&client_secret=scrubbed"),
        ('{"access_token": "sl.abc", "expires_in": 4}', '{"access_token": "scrubbed", "expires_in": 4}'),
        ("/y?uploadId=7&n=2&X-Amz-Signature=00ff", "/y?uploadId=scrubbed&n=2&X-Amz-Signature=scrubbed"),
        ("a=1&b=2", "a=1&b=2"),
    ],
)
def test_values_that_are_secret_by_their_names_are_taken_out(text: str, left: str) -> None:
    assert scrubbed(text) == left
