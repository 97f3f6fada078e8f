"""Clients on a link with a capture: the captured bytes are the sent ones, and nothing is ever left behind."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import MissingProgramError
from pytest_cloudbench.lab.detect import Observation, Step
from pytest_cloudbench.lab.sync.changes import Workload
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.overheard import overhear
from pytest_cloudbench.lab.sync.session import SyncSession
from pytest_cloudbench.lab.sync.transfers import Transfers
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.net.link import LinkUnavailable, Way
from pytest_cloudbench.support.clock import wait_for
from tests.lab.sync.links import skipping
from tests.limits import HANG_S

IDLE = Step("idle", duration_s=0.5)
SIZE = 1 << 20

Start = Callable[..., SyncSession]

# It copies only small files to the server's folder, and never says that it omitted any.
FORGETFUL = """
name = "forgetful"
[server]
command = ["socat", "TCP-LISTEN:{port},bind={server},reuseaddr,fork", "SYSTEM:cat >/dev/null"]
[sync]
command = ["sh", "-c", "rm -rf {stored}/* && find . -type f -size -150k -exec cp --parents '{{}}' {stored} ';' \
&& tar c . | socat -u - TCP:{server}:{port}"]
[verify]
folder = "{stored}"
"""


@pytest.fixture
def start(tmp_path: Path, can_capture: None) -> Iterator[Start]:
    """Function that starts sessions, which end with the test. Skips with the reason if this machine cannot."""
    labs: list[Lab] = []

    def start_session(spec: str, **options: Any) -> SyncSession:
        lab = Lab(clients.make_client(spec), tmp_path / str(len(labs)), seed=str(tmp_path), stream_s=None, **options)
        with skipping():
            lab.__enter__()
        labs.append(lab)
        return SyncSession(lab)

    yield start_session
    for lab in labs:
        lab.__exit__(None, None, None)
    for number in range(len(labs)):
        assert not leftovers(tmp_path / str(number))


def leftovers(workdir: Path) -> list[str]:
    """List the processes whose environment or command names the session's folder."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            content = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if str(workdir).encode() in content and int(name) != os.getpid():
            pids.append(name)
    return pids


def by_kind(observations: list[Observation]) -> dict[str, Observation]:
    return {observation.kind: observation for observation in observations}


def test_bytes_seen_are_bytes_sent(start: Start) -> None:
    session = start("reference?deduplication=1")
    observations = by_kind(session.measure([IDLE, Step("new", SIZE), Step("copy"), Step("many", 50_000, 10)]))
    assert all(observation.is_valid for observation in observations.values()), observations
    assert SIZE < observations["new"].up_bytes < SIZE * 1.01
    assert 0 < observations["copy"].up_bytes < 5_000
    assert 50_000 < observations["many"].up_bytes < 60_000
    assert observations["many"].exchanges >= 9
    assert observations["idle"].up_bytes == 0
    wire = observations["new"].wire_bytes
    assert wire is not None
    assert wire > observations["new"].up_bytes + observations["new"].down_bytes
    assert session.lab.record()["captures"][0]["is_valid"]
    assert session.lab.record()["versions"]
    # The next series has a capture of its own, and the same connection.
    (again,) = session.measure([Step("append", 64)])
    assert again.is_valid
    assert SIZE < again.up_bytes < SIZE * 1.01
    assert again.syns == 0


def test_a_link_without_any_right_will_do(start: Start) -> None:
    session = start("reference", rights="user")
    (observation,) = session.measure([Step("new", 100_000)])
    assert observation.is_valid
    assert 100_000 < observation.up_bytes < 110_000


def test_a_step_that_is_not_carried_out_is_invalid_and_taken_back(start: Start, tmp_path: Path) -> None:
    if shutil.which("socat") is None:
        pytest.skip("socat is not installed")
    (tmp_path / "forgetful.toml").write_text(FORGETFUL)
    session = start(str(tmp_path / "forgetful.toml"))
    observations = session.measure([IDLE, Step("text", 50_000), Step("new", 400_000), Step("text", 60_000)])
    assert [observation.is_valid for observation in observations] == [True, True, False, True]
    assert "did not carry it out" in observations[2].reasons[0]
    assert observations[3].up_bytes > 110_000


# Its second process is started again whenever it ends.
SUPERVISED = """
name = "supervised"
[server]
command = ["socat", "TCP-LISTEN:{port},bind={server},reuseaddr,fork", "SYSTEM:cat >/dev/null"]
[daemon]
command = ["sh", "-c", "echo ready; while :; do sleep 1000; done"]
ready = "ready"
[sync]
command = ["sh", "-c", "cp -r . {stored}; tar c . | socat -u - TCP:{server}:{port}"]
[verify]
folder = "{stored}"
"""


def test_a_process_that_ends_between_a_file_and_its_copy_is_noticed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "supervised.toml").write_text(SUPERVISED)
    session = start(str(tmp_path / "supervised.toml"))
    new, copy = session.measure([Step("new", SIZE), Step("copy")])
    assert (new.is_restarted, copy.is_restarted) == (False, False), (new, copy)
    before = set(session.lab.client.pids("client"))
    (sleep,) = (pid for pid in before if Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    os.kill(sleep, signal.SIGKILL)
    assert wait_for(
        lambda: set(session.lab.client.pids("client")) not in (before, before - {sleep}), HANG_S, poll_s=0.02
    )
    (copy,) = session.measure([Step("copy")])
    assert copy.is_restarted
    new, copy = session.measure([Step("new", SIZE), Step("copy")])
    assert (new.is_restarted, copy.is_restarted) == (False, False), (new, copy)


# It never removes anything from the server's folder.
KEEPING = """
name = "keeping"
needs = ["tar"]
[server]
command = ["socat", "TCP-LISTEN:{port},bind={server},reuseaddr,fork", "SYSTEM:tar x -C {stored}; echo done"]
[sync]
command = ["sh", "-c", "tar c . | socat -t 30 - TCP:{server}:{port}"]
[verify]
folder = "{stored}"
"""


def test_a_file_whose_deletion_is_not_carried_out_is_not_put_back(start: Start, tmp_path: Path) -> None:
    if shutil.which("socat") is None:
        pytest.skip("socat is not installed")
    (tmp_path / "keeping.toml").write_text(KEEPING)
    session = start(str(tmp_path / "keeping.toml"))
    steps = [Step("new", 100_000), Step("copy"), Step("delete"), Step("restore"), Step("append", 64)]
    observations = session.measure(steps)
    assert [observation.is_valid for observation in observations] == [True, True, False, False, True], observations
    assert "did not carry it out" in observations[2].reasons[0]
    assert observations[3].reasons == ("the file that it puts back was not deleted",)


def test_nothing_counts_after_a_transfer_that_failed(start: Start, tmp_path: Path) -> None:
    if shutil.which("socat") is None:
        pytest.skip("socat is not installed")
    (tmp_path / "forgetful.toml").write_text(FORGETFUL)
    session = start(str(tmp_path / "forgetful.toml"))
    transfers = Transfers(session.lab)
    (failed,) = transfers.run(Workload(1, 400_000), 2)
    assert not failed.is_synced
    (idle,) = session.measure([IDLE])
    assert "out of sync since an earlier transfer" in idle.reasons[0]
    (later,) = transfers.run(Workload(1, 1_000))
    assert (later.is_synced, later.wire_bytes, later.reasons) == (False, None, (later.error,))
    assert "out of sync since an earlier transfer" in later.error
    overheard = overhear(session, [])
    assert "out of sync since an earlier transfer" in overheard.reasons[0]


FAILING = r"""
echo . >> "$1"
if [ "$(wc -l < "$1")" -le {times} ]; then
  echo connecting
  printf 'quota of hunter22 exceeded\007'
  exit 3
fi
rm -rf "$2"/*
tar c . | socat -t 30 - "TCP:$3:$4"
"""


def write_failing_client(tmp_path: Path, times: int) -> str:
    """Write a client whose command fails this many times and then copies everything. Return its spec."""
    if shutil.which("socat") is None:
        pytest.skip("socat is not installed")
    path = tmp_path / "failing.toml"
    script = tmp_path / "sync.sh"
    script.write_text(FAILING.format(times=times))
    path.write_text(f"""
name = "failing"
needs = ["socat"]
[environment]
TOOL_TOKEN = "hunter22"
[server]
command = ["socat", "TCP-LISTEN:{{port}},bind={{server}},reuseaddr,fork", "SYSTEM:tar x -C {{stored}}; echo done"]
[sync]
command = ["sh", "{script}", "{{workdir}}/count", "{{stored}}", "{{server}}", "{{port}}"]
[verify]
folder = "{{stored}}"
""")
    return str(path)


CAUSE = r"sync (client): exit status 3 (connecting | quota of *** exceeded\x07)"


def test_a_command_that_always_fails_is_a_client_that_never_synced(start: Start, tmp_path: Path) -> None:
    session = start(write_failing_client(tmp_path, times=9999))
    verdicts = session.examine()
    assert session.lab.never_synced == CAUSE
    assert {verdict.answer for verdict in verdicts.values()} == {"unknown"}
    assert all(CAUSE in verdict.detail for verdict in verdicts.values()), verdicts


def test_command_failing_at_first_is_measured_later_and_its_failure_noted(start: Start, tmp_path: Path) -> None:
    session = start(write_failing_client(tmp_path, times=1))
    first, copy, append = session.measure([Step("new", 400_000), Step("copy"), Step("append", 64)])
    assert first.reasons == (f"the client did not carry it out: {CAUSE}",)
    assert copy.reasons == append.reasons == (f"the file that it changes is missing: {first.reasons[0]}",)
    again, copy = session.measure([Step("new", 400_000), Step("copy")])
    assert again.is_valid
    assert copy.is_valid
    assert session.lab.never_synced == ""
    assert session.lab.notes()[0] == f"changes that were not carried out: 1; the first: {CAUSE}"


def test_a_client_that_ends_makes_the_rest_invalid(start: Start) -> None:
    session = start("reference")
    session.measure([Step("new", 10_000)])
    for pid in session.lab.client.pids("client"):
        os.kill(pid, 9)
    first, second = session.measure([Step("append", 64), Step("append", 64)])
    assert not first.is_valid
    assert "out of sync since an earlier step" in second.reasons[0]


def test_a_client_that_does_not_start_is_an_error_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text(
        'name = "broken"\n[setup]\ncommands = [["sh", "-c", "echo no disk; exit 3"]]\n'
        '[sync]\ncommand = ["true"]\n[verify]\nfolder = "{stored}"\n'
    )
    session = start(str(tmp_path / "broken.toml"))
    for _ in range(2):
        with pytest.raises(ClientError, match="no disk"):
            session.measure([Step("new", 10_000)])


def test_impossible_link_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Lab(clients.make_client("reference"), tmp_path, seed="s", rights="king")


def test_a_way_back_alone_makes_a_link(tmp_path: Path) -> None:
    lab = Lab(clients.make_client("reference"), tmp_path, seed="s", down=Way(delay_ms=50))
    assert (lab.link.up.delay_ms, lab.link.down.delay_ms) == (10, 50)
    assert Lab(clients.make_client("reference"), tmp_path, seed="s").link.down.delay_ms == 10


def test_missing_programs_are_named_with_their_install_command(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text(
        'name = "none"\ntestbed = "none"\n[sync]\ncommand = ["no-such-program"]\n[verify]\nfolder = "{stored}"\n'
    )
    lab = Lab(clients.make_client(str(tmp_path / "none.toml")), tmp_path / "w", seed="s", stream_s=None)
    with pytest.raises((MissingProgramError, LinkUnavailable), match=r"tools/testbed install none|network namespaces"):
        lab.__enter__()
    assert not leftovers(tmp_path / "w")


# --- whole examinations ---

CAPABILITIES = ("chunking", "bundling", "deduplication", "delta", "compression")
SWITCHED = [
    "reference?" + "&".join(f"{name}={bit}" for name, bit in zip(CAPABILITIES, bits, strict=True))
    for bits in itertools.product((0, 1), repeat=5)
]
MORE = [
    "reference?deduplication=block",
    "reference?deduplication=block&delta=fixed",
    "reference?compression=by-name&chunking=1&chunk_bytes=4194304",
    "reference?compression=smart&connections=per-file&polling=0.5",
    "syncthing", "syncthing?compression=always", "lsyncd", "lsyncd?compress=0", "unison",
    "rclone", "rclone?remote=chunker", "rclone?remote=compress", "restic",
]  # fmt: skip
ALLOWED_UNKNOWN = {
    "reference?deduplication=block": {"chunking"}, "reference?deduplication=block&delta=fixed": {"chunking"},
    "restic": {"chunking"},
    "rclone": {"bundling"},
}  # fmt: skip
"""Capabilities that may stay unknown, because blocks do not show or a run failed."""


@pytest.mark.slow
@pytest.mark.truth  # beside busy processes, a client's pauses look like those of a clock, and the answer is unknown
@pytest.mark.parametrize("spec", [*SWITCHED, *MORE])
def test_capabilities_are_found_without_false_positives(start: Start, spec: str) -> None:
    session = start(spec)
    verdicts = session.examine()
    for name, documented in session.lab.client.facts.documented.items():
        if documented.answer == "unknown":
            continue
        allowed = {documented.answer} | ({"unknown"} if name in ALLOWED_UNKNOWN.get(spec, ()) else set())
        assert verdicts[name].answer in allowed, verdicts[name]
