"""The JSON and the text of an analysis, with any names and comments."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.report.capture import write_json
from tests.net.traffic import craft
from tests.net.traffic.craft import Record


@pytest.mark.parametrize("comments", [[], ["one"], ['a "quoted", text', '\n "comments": []', "\u00e9\u2028", ""]])
def test_comments_are_indented_like_the_rest(comments: list[str]) -> None:
    summary: dict[str, Any] = {"file": '\n "comments": []', "packets": 3, "comments": comments}
    out = io.StringIO()
    write_json(summary, ["a note"], [{"number": [0]}], out)
    assert json.loads(out.getvalue()) == {**summary, "notes": ["a note"], "flows": [{"number": 0}]}
    assert out.getvalue().startswith(json.dumps({**summary, "notes": ["a note"]}, indent=1)[:-2])


def test_flows_beyond_the_first_thousands_read_back_in_ascii() -> None:
    names = ['a "quoted" name', "\u00e9\u2028", "\ud800", "", "plain"]
    flows = [
        {
            "number": number,
            "name": names[number % 5],
            "first_s": 1.7e9 + number / 7,
            "rtt_s": 8.1e-05 * number,
            "sni": None,
        }
        for number in range(2500)
    ]
    out = io.StringIO()
    parts = (flows[:1000], flows[1000:])
    write_json(
        {"comments": []}, [], [{name: [flow[name] for flow in part] for name in flows[0]} for part in parts], out
    )
    assert json.loads(out.getvalue())["flows"] == flows
    assert out.getvalue().isascii()


@pytest.mark.parametrize("address", ["2001:db8::100", "2001:db8::1234:a:100", "10.0.0.1"])
def test_addresses_are_printed_as_they_are(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    client = "2001:db8::1" if ":" in address else "10.0.0.9"
    segments = [replace(segment, client=client, server=address) for segment in craft.connection(b"x" * 500)]
    path = tmp_path / "one.pcap"
    path.write_bytes(craft.pcap(craft.records(segments)))
    was_enabled = gc.isenabled()
    assert main(["analyze", str(path)]) == 0
    assert f"{address}:443 " in capsys.readouterr().out
    assert gc.isenabled() == was_enabled


@pytest.mark.parametrize(
    "data", [craft.pcap, lambda packets: craft.pcap(packets)[:-9], lambda packets: craft.pcapng(packets)[:-50]]
)
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_verdict_with_its_reasons_is_as_wide_as_the_terminal(
    data: Callable[[list[Record]], bytes], columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(tmp_path)
    Path("one.pcap").write_bytes(data(craft.records(craft.connection(b"x" * 5000))))
    assert main(["analyze", "one.pcap"]) == 0
    head = capsys.readouterr().out.partition("\nup is")[0].splitlines()
    assert head[1].startswith(("unknown: ", "invalid: "))
    assert max(map(len, head)) <= columns


def test_a_canary_too_short_to_be_looked_for_in_encoded_form_has_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.pcap"
    path.write_bytes(craft.pcap(craft.records(craft.connection(b"x" * 5000))))
    for canary, notes in (("7 bytes", 1), ("8 bytes.", 0), ("\u00e9\u00e9\u00e9\u00e9", 0)):
        assert main(["analyze", str(path), "--canary", canary, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)["notes"]
        assert len(printed) == notes
        assert all("shorter than 8 bytes" in note for note in printed)
