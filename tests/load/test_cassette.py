"""Cassettes: recorded on an account, replayed without one, free of secrets, and never a measurement.

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

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.load.cassette.cassette import check_options
from pytest_cloudbench.load.cassette.scrubbing import scrub_text, select_headers
from pytest_cloudbench.model import UsageError
from tests.fleet.harness import FinishedRun, Lab, lab_in

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
    with lab_in(tmp_path) as lab_of_folder:
        yield lab_of_folder.write(STORY)


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal") as running:
        yield running


def record(lab: Lab, emulator: EmulatorService, *more: str) -> FinishedRun:
    endpoint = emulator.endpoint
    env = {
        "HTTPS_PROXY": endpoint.proxy, "REQUESTS_CA_BUNDLE": endpoint.ca_file,
        "CLOUDBENCH_DROPBOX_ACCESS_TOKEN": endpoint.credentials["access_token"],
        "CI": "true",  # pytest then shows whole differences, and two long bodies took minutes
    }  # fmt: skip
    options = ("--provider", "dropbox", "--cloudbench-yes", "-ocloudbench_cassette=record tape.json")
    return lab.run(*options, *more, env=env)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, emulator: EmulatorService) -> FinishedRun:
    """One recording for all tests."""
    with lab_in(tmp_path_factory.mktemp("recorded")) as lab_of_folder:
        run = record(lab_of_folder.write(STORY), emulator)
    assert run.status == 0, run.text
    return run


@pytest.fixture
def tape(lab: Lab, recording: FinishedRun) -> Path:
    return Path(shutil.copy(recording.folder / "tape.json", lab.folder))


def replay(lab: Lab, *more: str) -> FinishedRun:
    return lab.run("--provider", "dropbox", "-ocloudbench_cassette=replay tape.json", *more, env=NOT_THERE)


def test_recording_is_replayed_without_account_or_network(
    lab: Lab, emulator: EmulatorService, recording: FinishedRun, tape: Path
) -> None:
    before = emulator.control(get="stats")["stats"]
    replayed = replay(lab)
    assert replayed.status == 0, replayed.text
    after = emulator.control(get="stats")["stats"]
    assert {**after, "cpu_s": 0} == {**before, "cpu_s": 0}, "nothing was sent"
    info = replayed.info("test_story[dropbox]")
    assert (info["ok"], info["lost"]) == (6, 0)
    assert "replayed from a cassette: nothing was measured" in info["doubts"]
    assert "***" not in replayed.text, "a made-up credential is not a word, which would be hidden"
    assert "recorded into a cassette" in " ".join(recording.info("test_story[dropbox]")["doubts"])


def test_replay_fails_on_a_request_that_was_not_recorded(lab: Lab, tape: Path) -> None:
    lab.write(STORY.replace('stat("/nothing")', 'stat("/something-else")'))
    replayed = replay(lab)
    assert replayed.status == 1, replayed.text


def test_file_contains_no_secret(emulator: EmulatorService, tape: Path) -> None:
    text = tape.read_text()
    assert emulator.endpoint.credentials["access_token"] not in text
    assert not re.search(r"(?i)authorization|bearer|sl\.emulated|cookie", text)
    assert len(json.loads(text)["interactions"]) > 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dist": "load"}, "works in one process; leave -n out"),
        ({"cloudbench_fail": ["loss_rate:0.1"]}, "a replay measures nothing: no gate"),
        ({"benchmark_autosave": True}, "a replay measures nothing"),
        ({"benchmark_compare": ""}, "a replay measures nothing"),
        ({"cloudbench_gate": True}, "a replay measures nothing"),
        ({"cloudbench_gate_strict": True}, "a replay measures nothing"),
        ({"cloudbench_update_expectations": "bounds.toml"}, "a replay measures nothing"),
        ({"cloudbench_versus": "dropbox"}, "leave --cloudbench-versus out"),
        ({"cloudbench_cassette": ["play", "tape.json"]}, "expected record FILE or replay FILE"),
    ],
)
def test_gates_comparisons_and_workers_are_refused(options: dict[str, Any], message: str) -> None:
    all_options = {"cloudbench_cassette": ["replay", "tape.json"], "dist": "no", "cloudbench_fail": [], **options}
    with pytest.raises(UsageError, match=message):
        check_options(Namespace(**all_options))


@pytest.mark.parametrize("gate", [("--cloudbench-fail", "loss_rate:0.1"), ("--cloudbench-gate",)], ids=["fail", "gate"])
def test_a_gate_on_a_replay_ends_the_session(lab: Lab, tape: Path, gate: tuple[str, ...]) -> None:
    run = replay(lab, *gate)
    assert run.status == 4, run.text
    assert "a replay measures nothing" in run.text
    assert not list(lab.folder.rglob("*.benchmarks*/**/*.json"))


RECORDED = {"run_id": "r", "seed": "s", "provider": "dropbox"}


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"recorded": 5}', json.dumps({"recorded": RECORDED, "interactions": 5}),
                json.dumps({"recorded": RECORDED, "interactions": [{"request": {}, "response": {}}]})],
)  # fmt: skip
def test_replay_refuses_a_file_that_is_not_a_cassette(lab: Lab, content: str) -> None:
    (lab.folder / "tape.json").write_text(content)
    run = replay(lab)
    assert run.status == 4, run.text
    assert "expected a file that cloudbench_cassette=record wrote" in run.text
    assert "Traceback" not in run.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--provider", "dropbox", "replay", "none.json"), "none.json: cannot be read"),
        (
            ("--provider", "dropbox", "record", "notes.txt"),
            "notes.txt: exists and is not a cassette: name another file",
        ),
        (("--provider", "dropbox", "record", "folder"), "folder: exists and is not a cassette"),
        (("--provider", "dropbox", "record", "none/tape.json"), "none is not a folder"),
        (("record", "tape.json"), "expected one --provider, and one that needs an account"),
        (("--provider", "emulated:ideal", "record", "tape.json"), "expected one --provider, and one that needs"),
    ],
)
def test_recording_refuses_an_unusable_path(lab: Lab, options: tuple[str, ...], message: str) -> None:
    (lab.folder / "folder").mkdir()
    (lab.folder / "notes.txt").write_text("important")
    *others, mode, path = options
    env = {"CLOUDBENCH_DROPBOX_ACCESS_TOKEN": "nothing-is-sent-with-it"}
    run = lab.run(*others, "--cloudbench-yes", f"-ocloudbench_cassette={mode} {path}", env=env)
    assert run.status == 4, run.text
    assert message in run.text
    assert "Traceback" not in run.text
    assert (lab.folder / "notes.txt").read_text() == "important"


def test_large_bodies_are_refused_and_no_file_is_kept(lab: Lab, emulator: EmulatorService) -> None:
    lab.write(STORY.replace("random(2000)", "random(70_000)"))
    run = record(lab, emulator)
    assert run.status == 1, run.text
    assert "a body of 70,000 bytes is above 65,536; use smaller files; no file is kept" in run.text
    assert not (lab.folder / "tape.json").exists()


def test_a_recording_that_is_not_kept_leaves_the_former_one(lab: Lab, emulator: EmulatorService, tape: Path) -> None:
    before = tape.read_bytes()
    lab.write(STORY.replace("random(2000)", "random(70_000)"))
    assert record(lab, emulator).status == 1
    assert tape.read_bytes() == before


def test_recording_without_requests_is_an_error(lab: Lab) -> None:
    run = lab.write(STORY).run("--provider", "folder:objects", "-ocloudbench_cassette=record tape.json", "-k", "story")
    assert run.status == 1, run.text
    assert "nothing was recorded" in run.text
    assert not (lab.folder / "tape.json").exists()


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("a=b&refresh_token=abc-1&client_secret=xyz", "a=b&refresh_token=scrubbed&client_secret=scrubbed"),
        ('{"access_token": "sl.abc", "expires_in": 4}', '{"access_token": "scrubbed", "expires_in": 4}'),
        ("/y?uploadId=7&n=2&X-Amz-Signature=00ff", "/y?uploadId=scrubbed&n=2&X-Amz-Signature=scrubbed"),
        ("a=1&b=2", "a=1&b=2"),
        ('"rw_uri": "URI:DIR2:abc:d_e"', '"rw_uri": "URI:DIR2:scrubbed"'),
        ("/uri/URI%3ADIR2-RO%3Aabc%3Adef/name", "/uri/URI%3ADIR2-RO%3Ascrubbed/name"),
    ],
)
def test_scrub_text_removes_values_with_secret_names(text: str, scrubbed: str) -> None:
    assert scrub_text(text) == scrubbed


def test_select_headers_keeps_only_headers_read_by_drivers() -> None:
    headers = {"x-ms-error-code": ["BlobNotFound"], "content-md5": "Zm9v", "x-goog-hash": ["md5=Zm9v"], "etag": '"1"'}
    assert select_headers(headers) == headers
    assert select_headers({"X-Auth-Token": ["abc"], "X-Subject-Token": "abc"}) == {
        "X-Auth-Token": ["scrubbed"], "X-Subject-Token": "scrubbed",
    }  # fmt: skip
    assert select_headers({"authorization": "Basic abc", "cookie": "a=b", "set-cookie": ["a=b"], "date": "today"}) == {}
