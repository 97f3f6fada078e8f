"""A client that somebody else started, on an interface that other programs use: only its own bytes count."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import ClientUnavailable, Proof
from pytest_cloudbench.lab.detect import Observation, judge_capabilities
from pytest_cloudbench.lab.sync.network import OwnLink, UsersInterface, interface_addresses, network_of, proof_notes
from pytest_cloudbench.net.link import Way
from pytest_cloudbench.results import journal
from tests.external_client import NAMED, ExternalClientLab, open_external_client, print_as_json

SESSION = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import ClientUnavailable
from pytest_cloudbench.lab.detect import Step
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.session import SyncSession
spec, folder, steps = sys.argv[1:]
with Lab(clients.make_client(spec), Path(folder), seed=folder, timeout_s=30) as lab:
    try:
        seen = SyncSession(lab).measure([Step(**each) for each in json.loads(steps)])
    except ClientUnavailable as error:
        print(json.dumps({"refused": str(error)}))
        sys.exit()
print(json.dumps({"seen": [asdict(each) for each in seen], "record": lab.record(), "notes": lab.notes()}))
"""
STEPS = (
    '[{"kind": "idle", "duration_s": 0.5}, {"kind": "new", "size_bytes": 1000000}, {"kind": "copy"}, '
    '{"kind": "many", "size_bytes": 50000, "files": 10}]'
)
_number = itertools.count()


def measured(at: ExternalClientLab, tmp_path: Path, steps: str = STEPS, **options: Any) -> tuple[dict[str, Any], Any]:
    """Observations by their kind, and what else is known."""
    found = at.run_python(SESSION, at.spec(**options), str(tmp_path / f"session-{next(_number)}"), steps)
    assert not list(at.pair.folder.glob("cloudbench-*")), "what was written is removed"
    return {each["kind"]: each for each in found["seen"]}, found


@pytest.mark.slow
def test_by_name_beside_another_program_at_the_same_address(tmp_path: Path) -> None:
    with open_external_client(f"reference?deduplication=1&connections=per-file&{NAMED}", tmp_path) as at:
        at.start_other_program()
        before = at.pair.counters()["received_bytes"]
        seen, found = measured(at, tmp_path, names="*.example.test")
        received = at.pair.counters()["received_bytes"] - before
    assert all(not each["reasons"] for each in seen.values()), seen
    assert seen["idle"]["up_bytes"] == 0
    assert 1_000_000 < seen["new"]["up_bytes"] < 1_010_000
    assert 0 < seen["copy"]["up_bytes"] < 5_000, "the switch shows"
    assert seen["many"]["syns"] == 10
    assert sum(each["up_bytes"] for each in seen.values()) <= received, "nothing that its server did not get"
    network = found["record"]["link"]
    assert network["flows_of_others"] > 3
    assert network["nameless"] == {"flows": 0, "wire_bytes": 0}
    assert network["seen_servers"] == ["files.example.test"]
    assert network["round_trip_s"] == pytest.approx(0.02, rel=0.3)
    assert network["mode"] == "the user's own network, not shaped"
    assert any("20" in note and "measured from handshakes" in note for note in found["notes"])
    assert any("recognised by name (*.example.test): " in note for note in found["notes"])
    assert not any("on this machine" in note for note in found["notes"])
    assert not any("quiet network" in note for note in found["notes"])


def test_an_open_connection_has_no_name_and_is_not_guessed(tmp_path: Path) -> None:
    with open_external_client(f"reference?{NAMED}", tmp_path) as at:
        refused = at.run_python(SESSION, at.spec(names="*.example.test"), str(tmp_path / "session"), STEPS)["refused"]
        assert not list(at.pair.folder.iterdir())
    assert "bytes were in flows without a name, which may or may not be the client's: say which servers" in refused


@pytest.mark.slow
def test_names_that_lack_a_server_are_found_out(tmp_path: Path) -> None:
    """The content goes to a server that nobody named; it must not look like a client that hardly sends anything."""
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path) as at:
        at.start_other_program()
        for spec in (at.spec(names="login.example.test"), at.spec(servers="192.0.2.1")):
            refused = at.run_python(SESSION, spec, str(tmp_path / f"session-{next(_number)}"), STEPS)["refused"]
            assert "the server has it, but nothing from the client was captured" in refused
            assert ("files.example.test (1," in refused) == ("names=" in spec), refused


def test_addresses_of_servers_name_an_open_connection(tmp_path: Path) -> None:
    with open_external_client("reference?deduplication=1", tmp_path) as at:
        seen, found = measured(at, tmp_path, servers=f"{at.link.address('server')},2001:2::/48")
    assert all(not each["reasons"] for each in seen.values()), seen
    assert 1_000_000 < seen["new"]["up_bytes"] < 1_010_000
    assert seen["new"]["syns"] == 0
    assert 0 < seen["copy"]["up_bytes"] < 5_000
    assert found["record"]["link"]["round_trip_s"] == pytest.approx(0.02, rel=0.5)
    assert any("measured from acknowledgements" in note for note in found["notes"])


@pytest.mark.slow
def test_small_nameless_traffic_is_reported_beside_the_number(tmp_path: Path) -> None:
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path) as at:
        at.start_nameless_program(500)
        seen, found = measured(at, tmp_path, names="*.example.test")
    assert all(not each["reasons"] for each in seen.values()), seen
    assert 1_000_000 < seen["new"]["up_bytes"] < 1_010_000
    assert seen["new"]["nameless_bytes"] > 500
    assert any(note.startswith("1 flow / ") and "are not counted" in note for note in found["notes"])


@pytest.mark.slow
def test_quiet_is_reported_as_a_weaker_proof(tmp_path: Path) -> None:
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path) as at:
        steps = '[{"kind": "new", "size_bytes": 1000000}]'
        seen, found = measured(at, tmp_path, steps, verified=False, names="*.example.test", quiet_s="1")
    assert not seen["new"]["reasons"]
    assert found["record"]["proofs"] == [Proof.QUIET.value]
    assert any(
        "a quiet network is taken as a sign that the server had everything, which is weaker" in note
        for note in found["notes"]
    )


@pytest.mark.slow
def test_a_server_that_is_near_shows_no_waits(tmp_path: Path) -> None:
    """Without a delay an answer arrives before the next bytes, though the client did not wait for it."""
    with open_external_client(f"reference?bundling=pipelined&connections=one&{NAMED}", tmp_path, delay_ms=0) as at:
        steps = STEPS.replace('{"kind": "copy"}', '{"kind": "few", "size_bytes": 5000, "files": 2}')
        seen, _ = measured(at, tmp_path, steps, servers=at.link.address("server"))
    verdicts = judge_capabilities([Observation(**each) for each in seen.values()])
    for name in ("chunking", "bundling"):
        assert verdicts[name].answer == "unknown"
        assert "the server is near (round trip 0." in verdicts[name].detail


def test_external_client_names_missing_options(tmp_path: Path) -> None:
    def refused(**options: str) -> str:
        client = clients.make_client("external", folder=str(tmp_path), **options)
        network = network_of(client, Way())
        assert isinstance(network, UsersInterface)
        with pytest.raises(ClientUnavailable) as raised:
            network.open(client, tmp_path.parent / f"{tmp_path.name}-work")
        network.close()
        assert not list(tmp_path.iterdir())
        return str(raised.value)

    assert "give interface, the one that the client uses; there are: lo" in refused(names="*.example.com")
    assert "cannot identify the client's traffic on lo; give names, product or servers" in refused(interface="lo")
    assert "no address of none0 is known; give address" in refused(interface="none0", names="*.example.com")


def test_clean_removes_files_of_killed_run_from_mirrored_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    mirrored = tmp_path / "mirrored"
    mirrored.mkdir()
    (mirrored / "mine.txt").write_text("stays")
    program = (
        "import os, signal, sys; from pathlib import Path; from pytest_cloudbench.lab import clients\n"
        "from pytest_cloudbench.lab.sync.network import UsersInterface\n"
        "options = {'interface': 'lo', 'servers': '127.0.0.1', 'address': '127.0.0.1'}\n"
        "client = clients.make_client('external', folder=sys.argv[1], **options)\n"
        "network = UsersInterface(client.facts.outside); network.open(client, Path(sys.argv[2]))\n"
        "(client.folder / 'x').write_text('goes')\n"
        "if sys.argv[3:]: network.close()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for ends in ([], ["at its end"]):
        argv = [sys.executable, "-c", program, str(mirrored), str(tmp_path / "work"), *ends]
        assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
        assert len(journal.pending_folders()[0]) == len(list(mirrored.glob("cloudbench-*"))) == (0 if ends else 1)
        assert cli.main(["clean"]) == 0
        assert [path.name for path in mirrored.iterdir()] == ["mine.txt"]
        assert journal.pending_folders() == ([], [])


def test_addresses_are_the_kernels() -> None:
    found = interface_addresses("lo")
    if not found:
        pytest.skip("lo has no address here, or this is not Linux")
    assert "127.0.0.1" in found
    assert interface_addresses("none0") == ()


def test_addresses_of_either_kind(tmp_path: Path) -> None:
    with open_external_client("reference", tmp_path) as at:
        code = "from pytest_cloudbench.lab.sync.network import interface_addresses as of\n"
        found = at.run_python(code + print_as_json(["of('cloudbench0')", "of('lo')"]))
        expected = at.link.address("client")
    assert expected in found[0]
    assert expected not in found[1]


def test_any_other_client_has_a_link_of_its_own() -> None:
    assert isinstance(network_of(clients.make_client("reference"), Way(delay_ms=10), Way(delay_ms=20)), OwnLink)
    assert network_of(clients.make_client("reference"), Way(delay_ms=10), Way(delay_ms=20)).round_trip_s == 0.03
    assert proof_notes([Proof.CONTENT]) == []
