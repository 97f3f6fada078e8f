"""A provider's messages, its requests and its preparation, in real sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb
from pytest_cloudbench.results.oplog import OpLog, read_parquet
from pytest_cloudbench.results.recovery import find_unmerged, recover_run, write_note
from tests.runs import SPREAD, Spread

from .harness import Lab

TIGHT = """
[meta]
name = "tight"
api = "dropbox"
description = "refuses nearly everything"
[throttle]
rate_per_s = 5
burst = 3
"""
OWN = """
    import os, threading, time
    import pytest
    from pytest_cloudbench.support import redact
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.model import Capabilities, CloudError, Entry, ErrorKind, Verb

    TOKEN = "sl.echoed-by-the-server-4711"

    class Talking:
        capabilities = Capabilities(digest=None, verbs=frozenset({Verb.PUT, Verb.LIST, Verb.DELETE}), via="files")

        def __init__(self, shared):
            self.shared, self.sent = shared, threading.local()
            redact.learn([TOKEN])
        def versions(self):
            return {}
        def prepare(self, folder):
            assert self.shared.is_dir(), "the folder is made before"
            (self.shared / f"prepared-{os.getpid()}").write_text(str(time.monotonic_ns()))
        def requests(self):
            return getattr(self.sent, "count", 0)
        def put(self, path, content):
            name = path.rpartition("/")[2]
            self.sent.count = self.requests() + 3
            if name.startswith(("s00002", "s00003")):
                detail = f"429 your token {TOKEN} is \\x1b[31mtired" if name.startswith("s00003") else "429 wait"
                raise CloudError(ErrorKind.THROTTLED, "put", path, detail=detail)
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
            pass

    @pytest.fixture(scope="session")
    def provider(request):
        yield Provider("own:talking", Talking(request.config.rootpath / "own"))
"""


@SPREAD
def test_words_requests_and_preparation_of_a_driver_of_ones_own(lab: Lab, spread: Spread) -> None:
    lab.write(OWN, "conftest.py").write("""
        def test_own(experiment, payloads):
            result = experiment.run(
                payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2, expect=()
            )
            assert (result["ops"], result["throttled"], result["requests_per_op"]) == (12, 4, 3.0)
    """)
    run = lab.run(*spread, "--cloudbench-fail", "requests_per_op:3")
    assert run.status == 0, run.text
    (entry,) = run.document["benchmarks"]
    info = entry["extra_info"]
    assert sorted(message["count"] for message in info["error_details"]["throttled"]["said"]) == [2, 2]
    assert {message["detail"] for message in info["error_details"]["throttled"]["said"]} == {
        "429 wait", r"429 your token *** is \x1b[31mtired",
    }  # fmt: skip
    assert any(line.endswith("3 requests is within the bound <= 3") for line in info["expectations"])
    (summary_line,) = run.lines_with("throttled 4 x, 2 of them: 429 ")
    assert "\x1b" not in summary_line
    (path,) = run.folder.rglob("*.parquet")
    table = read_parquet(path)
    assert set(table.requests) == {3}
    assert sorted(set(table.detail)) == ["", "429 wait", r"429 your token *** is \x1b[31mtired"]
    for file in run.folder.rglob("*"):
        if file.is_file() and file.name != "conftest.py" and file.parent.name != "__pycache__":
            assert b"echoed-by-the-server" not in file.read_bytes(), file
    prepared = list((lab.folder / "own").glob("prepared-*"))
    assert len(prepared) == max(1, len(spread)), "each agent's driver"
    assert all(int(path.read_text()) < min(table.start_ns) for path in prepared), "before the clock runs"


@pytest.mark.slow
@SPREAD
def test_words_of_an_emulated_service(lab: Lab, spread: Spread) -> None:
    (lab.folder / "tight.toml").write_text(TIGHT)
    lab.write("""
        def test_it(experiment, payloads):
            result = experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=4)
            assert result["requests_per_op"] == 1.0
    """)
    run = lab.run("--provider", "emulated:./tight.toml", *spread)
    assert run.status == 0, run.text
    (entry,) = run.document["benchmarks"]
    (message,) = entry["extra_info"]["error_details"]["throttled"]["said"]
    assert message["detail"] == "429 too_many_write_operations"
    assert message["count"] == entry["extra_info"]["throttled"] > 0
    assert run.lines_with(f"throttled {message['count']} x: 429 too_many_write_operations")


def test_a_conclusion_has_the_words_of_its_runs(lab: Lab) -> None:
    lab.write(OWN, "conftest.py").write("""
        def test_own(experiment, payloads):
            for _ in range(2):
                experiment.run(
                    payloads.random(50), arrival=FixedInterval(0.01), sensors=3, ops_per_sensor=2, store=False
                )
            experiment.conclude({"elapsed": 1.0}, [1.0], stats_of="nothing")
    """)
    run = lab.run()
    assert run.status == 0, run.text
    (entry,) = run.document["benchmarks"]
    assert entry["extra_info"]["errors"] == {"throttled": 4}
    assert entry["extra_info"]["error_details"] == {
        "throttled": {"count": 4, "said": [{"detail": "429 wait", "count": 4}]}
    }
    assert run.lines_with("throttled 4 x: 429 wait")


def test_a_recovered_entry_has_the_providers_words(tmp_path: Path) -> None:
    folder = tmp_path / "machine" / "run" / "test_it"
    for agent in ("gw0", "gw1"):
        with OpLog(folder / f"{agent}.oplog", {"agent": agent, "nodeid": "a.py::test_it", "run": "r"}) as log:
            for seq in range(3):
                log.record(
                    Op(Verb.PUT, 0, seq, 0, 1, 2, 0, 9 + seq, 5, Outcome.FAILED, ErrorKind.QUOTA, detail="507 full")
                )
    write_note(folder, {"fullname": "a.py::test_it", "name": "test_it", "run": "r", "params": {}, "info": {}}, {})
    note = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(note | {"owner": ""}))
    (unmerged_run,) = find_unmerged(tmp_path)
    recovered = recover_run(unmerged_run)
    assert recovered is not None
    (entry,) = json.loads(recovered[1].with_suffix(".json").read_text())["benchmarks"]
    assert entry["extra_info"]["error_details"] == {"quota": {"count": 6, "said": [{"detail": "507 full", "count": 6}]}}
    assert set(read_parquet(recovered[1]).detail) == {"507 full"}
