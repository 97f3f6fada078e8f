"""BenchCloud's files run unchanged: appendix A of the thesis, and all other settings that such files may have."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.plugin.collect.benchcloud_file import StartSleeps
from tests.fleet.harness import FOLDER, IDEAL, FinishedRun, Lab, lab_in
from tests.plugin.configs.test_benchcloud import FILES, LAYOUTS, LISTINGS, Change, changed, format_plain

# The files run as a user would run them: without this project's own pytest settings, and in several layouts.
NAMES = {name: name.replace(".", "") for name in FILES}
SMALL: tuple[Change, ...] = (("test", "times", "6"), ("file_generator", "size", "1000"), ("concurrent", "threads", "3"))
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
NO_SLEEP: Change = ("test", "sleep", "False")

# A conftest.py that writes the path and size of each file of a run to seen.txt before the run's folder is removed.
SEEN = """
    import pathlib
    from pytest_cloudbench.drivers.folder import FolderDriver

    delete = FolderDriver.delete

    def seen(self, path):
        top = self._root / path.strip("/")
        with pathlib.Path("seen.txt").open("a") as file:
            for found in sorted(top.rglob("*")):
                if found.is_file():
                    file.write(f"{path.split('/')[-1]} {found.relative_to(top)} {found.stat().st_size}\\n")
        delete(self, path)

    FolderDriver.delete = seen
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        (tmp_path / "pytest.ini").write_text("[pytest]\ncloudbench_files = *.conf *.ini *.cfg\n")
        yield new_lab


def write_file(lab: Lab, text: str, name: str = "old.conf") -> None:
    (lab.folder / name).write_bytes(text.encode())


def log_of(run: FinishedRun, name: str) -> str:
    paths = [path for path in (run.folder / "results").rglob(name) if path.is_file()]
    assert len(paths) == 1, (name, run.text)
    return paths[0].read_text("utf-8")


def write_profile(lab: Lab, name: str, settings: str) -> tuple[str, str]:
    head = f'[meta]\nname = "{name}"\napi = "dropbox"\ndescription = "sick"\n'
    (lab.folder / f"{name}.toml").write_text(f"{head}{settings}\n")
    return "--provider", f"emulated:./{name}.toml"


def numbers(pattern: str, text: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, text, re.M)]


def check_log(text: str, listing: Mapping[str, Any], ops: int) -> None:
    """Check that a log has the lines and tables of BenchCloud's own form."""
    expected = listing["expected"]
    stamped = re.compile(r"\[\d{13}\] \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \| ")
    head, _, tail = text.partition("\nStatistics of all operations:\n")
    lines = [line for line in head.splitlines() if line and not line.startswith("All ")]
    assert all(stamped.match(line) for line in lines)
    stamps = numbers(r"^\[(\d+)\]", head)
    assert stamps == sorted(stamps)
    assert f"| Start testing: {expected['description']}" in lines[0]
    done = numbers(r"\| Operation #(\d+) finished\. \(\d+ms\)$", head)
    failed = numbers(r"\| Operation #(\d+) failed: throttled\. \(\d+ms\)$", head)
    assert sorted(done + failed) == list(range(ops))
    if expected["kind"] == "upload":
        names = re.findall(r"File generated: (\S+)$", head, re.M)
        prefix, suffix = expected.get("prefix", ""), expected.get("suffix", "")
        assert len(set(names)) == ops
        assert all(re.fullmatch(re.escape(prefix) + "[0-9a-f]{16}" + re.escape(suffix), name) for name in names)
    else:
        assert len(re.findall(r"\| Start downloading file #\d+: \S+$", head, re.M)) == ops
    assert bool(expected.get("sleep_s")) == (f"About to sleep for {expected.get('sleep_s')} second(s)..." in head)
    assert re.search(r"^\| Operation \| +Time +\|$", tail, re.M)
    assert numbers(r"^\| +#(\d+) +\| +(?:\d+ms|failed) +\|$", tail) == list(range(ops))
    assert re.search(r"^\| +Min +\| +Max +\| +Average +\|$", tail, re.M)
    assert re.search(r"\| Time spent for all operations: \d+ms\n$", tail)


def check_appendix(run: FinishedRun, name: str, provider: str, changes: str = "") -> None:
    listing, entry = LISTINGS[name], f"{NAMES[name]}[{provider}]"
    expected, info = listing["expected"], run.info(entry)
    ops = expected.get("times", 5)
    assert (info["ops"], info["ok"] + info["throttled"], info["failed"], info["corrupt"]) == (ops, ops, 0, 0)
    assert info["threads"] == expected["threads"]
    assert info["operation"] == ("put" if expected["kind"] == "upload" else "get")
    assert info["size_bytes"] == expected.get("generator_params", {"size_bytes": 1000})["size_bytes"]
    assert info["description"] == expected["description"]
    if expected["kind"] == "upload":
        assert (info["files"], info["lost"], info["silently_lost"]) == (ops, info["throttled"], 0)
    keys = {note.partition(":")[0] for note in info["notes"]}
    assert keys >= set(listing["place"]["notes"]) - {"driver.class"}
    folder = run.folder / "results" / Path(info["ops_file"]).parent.name
    where = f"{NAMES[name]}.conf__{entry}".replace("[", "_").replace("]", "_").replace(":", "_")
    logs = list(folder.parent.rglob(f"{where}-*/{listing['place']['log_name']}"))
    assert len(logs) == 1, where
    check_log(logs[0].read_text("utf-8"), listing, ops)


# --- appendix A ---


@pytest.mark.slow
def test_appendix_a_runs_against_an_emulated_account_and_a_folder_of_nine_needs_no_option(lab: Lab) -> None:
    """All INI files of the appendix run at once, with sleeps 400 times shorter. A.6 is a script and not among them."""
    assert FILES.keys() == {f"A.{number}" for number in (1, 2, 3, 4, 5, 7, 8, 9)}
    for at, (name, stem) in enumerate(NAMES.items()):
        write_file(lab, LAYOUTS[at % len(LAYOUTS)](FILES[name]["file"]), f"{stem}.conf")
    run = lab.run(
        "-n", "2", "--time-scale", "400", "-ocloudbench_benchcloud_fill=5:1000", "--provider", "emulated:dropbox"
    )
    assert run.counts() == {"passed": 8}, run.text
    for name in FILES:
        check_appendix(run, name, "emulated:dropbox")
    assert run.lines_with("note: --time-scale 400: every sleep is 400 times shorter than the file says")
    assert run.leftovers == []


@pytest.mark.slow
def test_appendix_a_runs_against_a_folder(lab: Lab) -> None:
    """The files run in real time without their sleeps. Names and sizes are checked on the disk."""
    for at, (name, stem) in enumerate(NAMES.items()):
        write_file(lab, LAYOUTS[at % len(LAYOUTS)]({**FILES[name]["file"], "test": {**FILES[name]["file"]["test"],
            "sleep": "False"}}), f"{stem}.conf")  # fmt: skip
    lab.write(SEEN, "conftest.py")
    run = lab.run(*FOLDER, "-ocloudbench_benchcloud_fill=5:1000")
    assert run.counts() == {"passed": 8}, run.text
    rows = [line.split() for line in (lab.folder / "seen.txt").read_text().splitlines()]
    for name, stem in NAMES.items():
        expected, where = LISTINGS[name]["expected"], LISTINGS[name]["place"]
        files = [(path, int(size)) for run_name, path, size in rows if run_name.startswith(f"{stem}.conf")]
        assert {size for _, size in files} == {expected.get("generator_params", {"size_bytes": 1000})["size_bytes"]}
        if "remote_filename" in expected:
            assert [path for path, _ in files] == [where["path"]]
            continue
        assert len(files) == expected.get("times", 5)
        path = re.escape(where.get("path", f"{where.get('folder')}/x"))
        assert all(re.fullmatch(path.replace("x", "[0-9a-f]{16}") if "path" not in where else
                   "[0-9a-f]{16}".join(path.rsplit("x", 1)), file_path) for file_path, _ in files)  # fmt: skip
        assert run.info(f"{stem}[folder:objects]")["lost"] in (0, None)


@pytest.mark.slow
def test_drivers_note_their_emulator_and_local_driver_asks_for_a_folder(lab: Lab) -> None:
    write_file(lab, changed(*SMALL), "up.conf")
    write_file(lab, changed(("file_generator", "size", "1000"), listing="A.7"), "local.ini")
    run = lab.run()
    assert run.counts() == {"passed": 1, "failed": 1}, run.text
    assert run.lines_with("note: driver.class: runs against emulated:dropbox; --provider dropbox is the real service")
    assert run.lines_with("local.ini: driver.class: expected --provider folder:PATH, such as the folder of a sync")
    assert "Traceback" not in run.text
    assert list(run.entries) == ["up[emulated:dropbox]"]


@pytest.mark.slow
def test_the_example_of_the_document_runs(lab: Lab) -> None:
    document = (Path(__file__).parents[3] / "docs" / "reference" / "benchcloud.md").read_text("utf-8")
    write_file(lab, re.findall(r"^```ini\n(.*?)^```", document, re.M | re.S)[0], "upload.conf")
    run = lab.run("upload.conf")
    assert run.counts() == {"passed": 1}, run.text
    assert list(run.entries) == ["upload[emulated:dropbox]"]
    assert len(re.findall(r"^\| +#\d +\| +(\d+ms|failed) +\|$", run.text, re.M)) == 10


# --- runs ---


@pytest.mark.slow
def test_a_download_fills_its_folder_first(lab: Lab) -> None:
    write_file(lab, format_plain(FILES["A.2"]["file"]))
    run = lab.run(*IDEAL, "-n", "3", "-ocloudbench_benchcloud_fill=7:3000")
    assert run.counts() == {"passed": 1}, run.text
    info = run.info("old[emulated:ideal]")
    assert (info["operation"], info["ops"], info["ok"], info["size_bytes"]) == ("get", 7, 7, 3000)
    assert run.lines_with("note: test.remote_dir: filled with 7 files of 3,000 random bytes")
    log = log_of(run, "benchmarking-dropbox-download-25threads.log")
    assert sorted(numbers(r"Start downloading file #(\d+): \w+$", log)) == list(range(7))
    run = lab.run(*IDEAL, "-ocloudbench_benchcloud_fill=many")
    assert run.lines_with("cloudbench_benchcloud_fill many: expected FILES:BYTES, such as 50:102400")


@given(min_s=st.integers(0, 5), range_s=st.integers(0, 5), seed=st.text(max_size=5))
def test_start_sleeps_are_whole_seconds_and_every_one_of_them_occurs(min_s: int, range_s: int, seed: str) -> None:
    arrival = StartSleeps(1, 0, min_s + range_s, min_s)
    drawn = [arrival.first_s(seed, thread) for thread in range(300)]
    assert set(drawn) == {float(second) for second in range(min_s, min_s + range_s + 1)}
    assert drawn == [arrival.first_s(seed, thread) for thread in range(300)]


@pytest.mark.slow
def test_each_thread_sleeps_a_random_time_before_its_first_operation(lab: Lab) -> None:
    sleeps: tuple[Change, ...] = (("test", "random_start_sleep_min", "3"), ("test", "random_start_sleep_max", "9"))
    write_file(lab, changed(*SMALL, *sleeps, ("test", "times", "3")))
    run = lab.run(*IDEAL, "--time-scale", "10", "-n", "2", "--cloudbench-seed", "s")
    assert run.counts() == {"passed": 1}, run.text
    log = log_of(run, "dropbox_upload_random_binary_50f_100KB_25threads.log")
    slept_s = numbers(r"Worker #\d: Sleep before start: (\d+)s$", log)
    assert slept_s == [int(StartSleeps(3, 0, 9, 3).first_s("s", thread)) for thread in range(3)]
    began_ms = numbers(r"^\[(\d+)\].*Start testing", log)[0]
    started_ms = sorted(at_ms - began_ms for at_ms in numbers(r"^\[(\d+)\].*Start operation", log))
    assert started_ms[0] >= min(slept_s) * 100 - 1  # stamps are cut to whole milliseconds
    assert run.info("old[emulated:ideal]")["lateness_max"] < 0.5


@pytest.mark.slow
def test_the_operations_are_the_same_however_many_agents_share_them(lab: Lab) -> None:
    write_file(lab, changed(*SMALL))
    names = []
    for spread in ((), ("-n", "3")):
        run = lab.run(*FOLDER, *spread, "--cloudbench-seed", "s", "--cloudbench-results", f"results{len(spread)}")
        assert run.counts() == {"passed": 1}, run.text
        log = next((lab.folder / f"results{len(spread)}").rglob("*.log")).read_text()
        names.append(dict(re.findall(r"Operation #(\d+): File generated: (\S+)", log)))
        assert len(run.lines_with("Time spent for all operations: ")) == 1
        assert len(run.lines_with("log: results")) == 1
    assert names[0] == names[1]
    assert len(names[0]) == 6


def test_sleep_after_the_last_operation_is_skipped(lab: Lab) -> None:
    write_file(
        lab, changed(*SMALL, ("test", "sleep", "True"), ("test", "sleep_seconds", "500"), ("test", "times", "3"))
    )
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    assert run.info("old[folder:objects]")["elapsed"] < 50


def test_terminal_lists_all_times_without_a_log(lab: Lab) -> None:
    many: Change = ("test", "times", "150")
    write_file(lab, changed(*SMALL, many), "logged.conf")
    write_file(lab, changed(*SMALL, many, ("logging", "enabled", "False")), "bare.conf")
    run = lab.run(*FOLDER)
    assert run.counts() == {"passed": 2}, run.text
    assert len(re.findall(r"^\| +#\d+ +\|", run.text, re.M)) == 150
    assert run.lines_with("the times of all 150 operations are in the log")
    assert len(list((lab.folder / "results").rglob("*.log"))) == 1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("args", "side"),
    [((), "emulated:dropbox"), (("--provider", "folder:first"), "folder:first")],
    ids=["default", "named"],
)
def test_two_sides_are_compared(lab: Lab, args: tuple[str, ...], side: str) -> None:
    write_file(lab, changed(*SMALL, NO_SLEEP))
    run = lab.run(*args, "--cloudbench-versus", "folder:other", "-ocloudbench_versus_minutes=0.01")
    assert run.counts() == {"passed": 1}, run.text
    (entry,) = run.entries.values()
    assert entry["name"] == f"old[{side}-vs-folder:other]"
    assert [entry["extra_info"]["versus"][name] for name in "AB"] == [side, "folder:other"]


# --- bugs of BenchCloud that are not reproduced ---


@pytest.mark.slow
def test_a_failed_operation_is_a_failure_and_hangs_nothing(lab: Lab) -> None:
    write_file(lab, changed(*SMALL))
    faults = {
        "errors": ("[faults]\nerror_rate = 1.0", "old.conf: none of 6 operations succeeded: server 6"),
        "quota": ("[quota]\nbytes = 3500", "old.conf: 3 of 6 operations failed, the first one is #"),
        "full": ("[quota]\nbytes = 1", "old.conf: none of 6 operations succeeded: quota 6"),
        "rotten": ("[faults]\ncorrupt_rate = 1.0", "old.conf: 6 of 6 operations failed, the first one is #0: corrupt"),
    }
    run = lab.run(
        *(word for name, (settings, _) in faults.items() for word in write_profile(lab, name, settings)), "-n", "2"
    )
    assert (run.status, run.counts()) == (1, {"failed": 4}), run.text
    for _, message in faults.values():
        assert run.lines_with(message), run.text
    assert "Traceback" not in run.text
    assert run.leftovers == []
    log = log_of(run, "*quota*/dropbox_upload_random_binary_50f_100KB_25threads.log")
    assert len(re.findall(r"Operation #\d failed: quota\. \(\d+ms\)$", log, re.M)) == 3
    assert len(re.findall(r"^\| +#\d +\| +failed +\|$", log, re.M)) == 3
    assert "All 6 operations finished, 3 of them failed! :(" in log
    assert run.lines_with("failed: quota 3")


@pytest.mark.slow
def test_throttled_operations_are_a_loss_that_gates_judge(lab: Lab) -> None:
    write_file(lab, changed(*SMALL))
    throttled = write_profile(lab, "busy", "[throttle]\nrate_per_s = 0.5\nburst = 2")
    run = lab.run(*throttled)
    assert run.counts() == {"passed": 1}, run.text
    info = run.info("old[emulated:./busy.toml]")
    assert info["throttled"] >= 1
    assert info["ok"] + info["throttled"] == 6
    assert info["lost"] == info["throttled"]
    assert run.lines_with(f"failed: throttled {info['throttled']}")
    run = lab.run(*throttled, "--cloudbench-fail", "loss_rate:0")
    assert (run.status, run.counts()) == (1, {"failed": 1})


# --- collected files ---


def test_other_ini_files_are_left_alone(lab: Lab) -> None:
    for name in ("tox.ini", "setup.cfg", "app.conf"):
        write_file(lab, "[tox]\nenvlist = py\n[test]\nx = 1\n; there is no [driver]\n", name)
    write_file(lab, "[test]\n[driver]\n", "notes.txt")
    (lab.folder / "bytes.ini").write_bytes(bytes(range(256)) * 10)
    (lab.folder / "wide.ini").write_bytes("[test]\n[driver]\n".encode("utf-16"))
    (lab.folder / "big.ini").write_bytes(b"[test]\n[driver]\n" + b"#" * (1 << 20))
    (lab.folder / "gone.ini").symlink_to("nowhere.ini")
    (lab.folder / "folder.ini").mkdir()
    lab.write("def test_mine(): pass")
    assert lab.run("--collect-only", "-q").lines_with("::") == ["test_it.py::test_mine"]
    (lab.folder / "pytest.ini").write_text(
        "[pytest]\ncloudbench_files = *.conf *.cfg *.INI\npython_functions = check_*\n"
    )
    (lab.folder / "old.INI").write_bytes(b"\xef\xbb\xbf" + changed(("test", "description", "b")).encode())
    for name in ("setup_module.conf", "pytestmark.conf"):
        write_file(lab, changed(), name)
    (lab.folder / "latin.cfg").write_bytes(changed(("test", "description", "caf\xe9")).encode("latin-1"))
    assert lab.run("--collect-only", "-q").lines_with("::") == [
        f"{file}::{name}[emulated:dropbox]" for file, name in (
            ("latin.cfg", "latin"), ("old.INI", "old"), ("pytestmark.conf", "benchcloud_pytestmark"),
            ("setup_module.conf", "benchcloud_setup_module"),
        )
    ]  # fmt: skip


def test_wrong_file_is_refused_in_one_line(lab: Lab) -> None:
    write_file(lab, changed(("test", "times", "ten")))
    write_file(lab, changed(("driver", "class", "benchcloud.drivers.wuala_driver.WualaDriver")), "wuala.conf")
    run = lab.run("--continue-on-collection-errors")
    assert run.counts() == {"errors": 2}, run.text
    assert run.lines_with("old.conf: test.times: expected a whole number, 1 or more, found 'ten'")
    assert run.lines_with("wuala.conf: driver.class: expected one of ")
    assert "Traceback" not in run.text
    (lab.folder / "old.conf").unlink()
    write_file(lab, changed(*SMALL, ("driver", "class", "benchcloud.drivers.wuala_driver.WualaDriver")), "wuala.conf")
    assert lab.run(*FOLDER).counts() == {"passed": 1}


# --- [capture] ---


CAPTURE = (
    ("capture", "device", "nowhere0"), ("capture", "snaplen", "128"), ("capture", "promisc", "False"),
    ("capture", "to_ms", "100"), ("capture", "filename", "/tmp/x.pcap"),
)  # fmt: skip


def test_an_impossible_capture_is_a_note_and_the_test_runs(lab: Lab) -> None:
    """Settings come from the file itself or from the option, as in BenchCloud."""
    write_file(lab, changed(*SMALL, *CAPTURE), "own.conf")
    write_file(lab, changed(*SMALL), "bare.conf")
    settings = "[capture]\n" + "".join(f"{key} = {value}\n" for _, key, value in CAPTURE)
    (lab.folder / "capture.txt").write_text(settings)
    run = lab.run(*FOLDER, "-n", "2", "-ocloudbench_benchcloud_capture=capture.txt")
    assert run.counts() == {"passed": 2}, run.text
    for name in ("own", "bare"):
        notes = run.info(f"{name}[folder:objects]")["notes"]
        assert any(note.startswith("[capture]: nothing is captured: ") for note in notes)
        assert "[capture]: the files are removed at once: a sync client may not have sent them by then" in notes


LATE_CLIENT = """
    import json, pathlib, sys, time

    comment = json.loads(sys.argv[sys.argv.index("--capture-comment") + 1])
    for label in ("start", "end"):
        sys.stdout.write(f"cloudbench-sentinel {comment['sentinel']['token']} {label}")
    sys.stdout.flush()
    print("File: -", file=sys.stderr, flush=True)
    seen_s = {}
    while True:
        for path in pathlib.Path("objects").rglob("*"):
            if path.is_file() and "cloudbench-" not in path.name and path not in seen_s:
                seen_s[path] = time.monotonic()
        for path, first_s in seen_s.items():
            if 1 < time.monotonic() - first_s < 1000 and path.exists():
                seen_s[path] -= 1000
                sys.stdout.buffer.write(b"SENT" + path.read_bytes())
                sys.stdout.flush()
        time.sleep(0.02)
"""
"""A program in dumpcap's place that captures the traffic of a client that notices a file after a second.

Tests cannot assume that packets can be captured.
"""


def prepare_capture(lab: Lab, program: str) -> dict[str, str]:
    """Write an upload of 6 files of 30,000 bytes. Return the environment with a program in dumpcap's place."""
    (lab.folder / "bin").mkdir()
    fake = lab.folder / "bin" / "dumpcap"
    fake.write_text(f"#!{sys.executable}\n{textwrap.dedent(program)}")
    fake.chmod(0o700)
    write_file(lab, changed(*SMALL, ("file_generator", "size", "30000"), ("capture", "device", LOOPBACK), *CAPTURE[1:]))
    return {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}


def capture_with(lab: Lab, program: str, *words: str, **limits: float) -> FinishedRun:
    """Run the upload of ``prepare_capture`` into a folder."""
    environment = prepare_capture(lab, program)
    settings = "".join(f"\nquiet._{name.upper()} = {value}" for name, value in limits.items())
    lab.write(f"import pytest_cloudbench.plugin.collect.benchcloud_capture as quiet{settings}\n", "conftest.py")
    run = lab.run(*FOLDER, *words, env=environment)
    assert run.counts() == {"passed": 1}, run.text
    assert not [path for path in (lab.folder / "objects").rglob("*") if path.is_file()]
    return run


def test_files_stay_until_a_sync_client_has_sent_them(lab: Lab) -> None:
    run = capture_with(lab, LATE_CLIENT, "-n", "2", quiet_s=0.5)
    (capture,) = lab.folder.rglob("x.pcapng")
    assert capture.read_bytes().count(b"SENT") == 6
    assert run.lines_with("the files stayed until the capture was quiet")
    notes = run.info("old[folder:objects]")["notes"]
    assert (
        "[capture]: the files stay until the capture is quiet, which is no proof that a sync client sent them" in notes
    )


def test_files_that_no_client_sends_do_not_stay_for_ever(lab: Lab) -> None:
    run = capture_with(lab, LATE_CLIENT.replace("SENT", "").replace("path.read_bytes()", "b''"), unseen_most_s=1.5)
    assert run.lines_with("no traffic stood out within 1.5 s, so a sync client may not have sent the files")


def test_a_capture_that_stays_busy_is_not_waited_for_for_ever(lab: Lab) -> None:
    chatter = LATE_CLIENT.replace("time.sleep(0.02)", "sys.stdout.write('x' * 10000); time.sleep(0.02)")
    run = capture_with(lab, chatter, busy_most_s=1.5)
    assert run.lines_with("the capture was still busy after 1.5 s, so a sync client may not have sent all files")


def test_an_estimate_captures_nothing(lab: Lab) -> None:
    environment = prepare_capture(lab, LATE_CLIENT)
    before = {path for path in lab.folder.rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "estimate", "old.conf", *FOLDER]
    ended = subprocess.run(
        command, cwd=lab.folder, capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    assert "7 (6 put, 1 list)" in ended.stdout
    assert {path for path in lab.folder.rglob("*") if path.is_file()} == before


def test_unreadable_capture_settings_are_reported_in_one_line(lab: Lab) -> None:
    write_file(lab, changed(*SMALL))
    run = lab.run(*FOLDER, "-ocloudbench_benchcloud_capture=gone.conf")
    assert run.lines_with("cloudbench_benchcloud_capture gone.conf: cannot be read: No such file or directory")
    assert run.counts() == {"error": 1}


# --- names ---


@given(
    names=st.builds(FileNames, st.sampled_from(["", ".jpg"]), st.sampled_from(["", "a-"]), st.text(max_size=4)),
    numbers=st.sets(st.tuples(st.integers(0, 10**5), st.integers(0, 10**6)), max_size=50),
)
def test_each_file_has_a_name_of_its_own_and_names_travel_as_plain_values(
    names: FileNames, numbers: set[tuple[int, int]]
) -> None:
    file_names = {names.name(*number) for number in numbers}
    assert len(file_names) == len(numbers)
    assert all(name.startswith(names.prefix) and name.endswith(names.suffix) for name in file_names)
    again = FileNames(**asdict(names))
    assert {again.path(*number) for number in numbers} == file_names
    within = FileNames(only="one", folder="a/b")
    assert {within.path(*number) for number in numbers} <= {"a/b/one"}
    assert within.new(0, 1) != within.new(0, 2)
