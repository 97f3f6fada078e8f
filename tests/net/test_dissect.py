"""Captures from disk, the few packets that need tshark, and the output of ``cloudbench analyze``."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net import dissect
from pytest_cloudbench.net.traffic import analyze
from tests.limits import HANG_S
from tests.net.traffic import craft
from tests.net.traffic.test_captures import load_make_captures

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "captures"
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


@needs_tshark
def test_names_in_quic_hellos() -> None:
    assert [hello.name for hello in dissect.read_hellos(FOLDER / "names.pcapng", quic=True)] == ["quic.example.com"]


@needs_tshark
@pytest.mark.parametrize("file", ["tls13.pcapng", "tls12.pcapng", "upload-ipv4.pcapng"])
def test_pyshark_reads_the_same_names(file: str) -> None:
    analysis = analyze((FOLDER / file).read_bytes())
    hellos = [
        (str(facts.flow.client), facts.flow.client_port, str(facts.flow.server), facts.flow.server_port, facts.sni)
        for facts in analysis.facts
        if facts.sni
    ]
    assert hellos == dissect.read_hellos(FOLDER / file, quic=False)


@needs_tshark
def test_quic_flows_get_names_and_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[clients.mine.rules]]\nrole = "storage"\nnames = ["quic.*"]\n')
    assert cli.main(["analyze", str(FOLDER / "names.pcapng"), "--json", "--dissect", "--rules", str(rules)]) == 0
    flows = {flow["protocol"]: flow for flow in json.loads(capsys.readouterr().out)["flows"]}
    assert (flows["quic"]["sni"], flows["quic"]["role"]) == ("quic.example.com", "storage")
    assert flows["tcp"]["role"] == "other"


@needs_tshark
def test_a_quic_flow_gets_the_name_of_its_own_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The client uses one port for two servers, and then for two names of a third, which its hellos do not tell."""
    make_initial = load_make_captures().quic_initial
    hellos = [
        ("10.0.0.2", "upload.example.com"),
        ("10.0.0.3", "www.example.com"),
        ("10.0.0.4", "a.example.com"),
        ("10.0.0.4", "b.example.com"),
    ]
    frames = [
        (craft.START_NS, craft.udp("10.0.0.1", 5000, server, 443, make_initial(name, bytes([number] * 8))))
        for number, (server, name) in enumerate(hellos)
    ]
    path, rules = tmp_path / "one-port.pcap", tmp_path / "rules.toml"
    path.write_bytes(craft.pcap(frames))
    rules.write_text('[[rules]]\nrole = "storage"\nnames = ["upload.*"]\n')
    assert cli.main(["analyze", str(path), "--json", "--dissect", "--rules", str(rules)]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [(flow["sni"], flow["role"]) for flow in output["flows"]] == [
        ("upload.example.com", "storage"),
        ("www.example.com", "other"),
        (None, "other"),
    ]
    assert output["notes"] == ["1 QUIC flows have hellos of several names"]


def test_missing_tshark_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="tshark is not installed"):
        dissect.read_hellos(FOLDER / "names.pcapng", quic=True)
    assert cli.main(["analyze", str(FOLDER / "names.pcapng"), "--dissect"]) == 0
    assert "tshark is not installed" in capsys.readouterr().out


def test_gzip_files_are_read_like_plain_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, packed = FOLDER / "loss-up.pcapng", tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    outputs = []
    for path in (plain, packed):
        assert cli.main(["analyze", str(path), "--json"]) == 0
        outputs.append(json.loads(capsys.readouterr().out) | {"file": ""})
    assert outputs[0] == outputs[1]
    packed.write_bytes(packed.read_bytes()[:-20])
    assert cli.main(["analyze", str(packed)]) == 4
    assert "the gzip data is damaged or truncated" in capsys.readouterr().err


def test_standard_input_is_analyzed(capsys: pytest.CaptureFixture[str]) -> None:
    data = (FOLDER / "loss-up.pcapng").read_bytes()
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "analyze", "-", "--json"]
    finished = subprocess.run(command, input=data, capture_output=True, timeout=HANG_S, check=False)
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert json.loads(finished.stdout)["packets"] == analyze(data).records
    assert cli.main(["analyze", "-", "--dissect"]) == 4
    assert "expected a file's name" in capsys.readouterr().err


def test_released_pages_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(1 << 20))
    with dissect.open_capture(path) as (buffer, release):
        assert buffer[:] == bytes(1 << 20)
        release(1 << 21)
        assert buffer[-5:] == bytes(5), "still readable"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.pcap"], "cannot be read"), (["."], "cannot be read"), (["words"], "expected a pcap or pcapng file"),
        (["empty"], "it is empty"), (["good", "--client", "me"], "expected an IPv4 or IPv6 address"),
        (["good", "--client", "10.1.1.1"], "no packet is from or to 10.1.1.1"),
        (["good", "--rules", "none.toml"], "none.toml"), (["good", "--changed-bytes", "0"], "expected 1 or more"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("words").write_text("these are words")
    Path("empty").touch()
    Path("good").write_bytes((FOLDER / "canary.pcapng").read_bytes())
    assert cli.main(["analyze", *arguments]) == 4
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_the_largest_flows_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    path = tmp_path / "many.pcap"
    ports = range(2000, 2100)
    segments = [craft.Segment(craft.START_NS, True, 1, data=b"x" * (port % 90), client_port=port) for port in ports]
    path.write_bytes(craft.pcap(craft.records(segments)))
    assert cli.main(["analyze", str(path)]) == 0
    text = capsys.readouterr().out
    assert "60 smaller flows are not shown; --json has all" in text
    assert "89 B" in text
    assert "30 B" not in text
    assert cli.main(["analyze", str(path), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output == analyze(path.read_bytes(), source=str(path)).as_dict() | {
        "notes": [], "roles": output["roles"], "flows": output["flows"],
    }  # fmt: skip
    assert [flow["payload_up_bytes"] for flow in output["flows"]] == [port % 90 for port in ports]


def test_text_output_shows_flows_and_totals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    arguments = ["--changed-bytes", "150000", "--canary", "nothing of the kind", "--client", "10.9.0.1"]
    assert cli.main(["analyze", str(FOLDER / "loss-up.pcapng"), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert "pcapng, 187 packets" in lines[0]
    assert lines[1] == "valid"
    assert "canary sent in plain text: no" in text
    assert any({"storage", "150", "kB", "7"} <= set(line.split()) for line in lines)
    assert any("10.9.0.2:9000" in line for line in lines)
    assert "TUE: 1.1" in text
    assert "up is what 10.9.0.1 sent" in lines
    assert max(map(len, lines)) <= 100
    assert cli.main(["analyze", str(FOLDER / "offload.pcap"), "--changed-bytes", "200000"]) == 0
    text = capsys.readouterr().out
    assert "unknown: the file does not say how many packets the capture lost" in text
    assert "overhead unknown: segments above the MSS" in text
    assert "TUE" not in text
