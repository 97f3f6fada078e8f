"""The suites of sync clients on a client that somebody else started, run where it runs, beside other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab.detect import CAPABILITIES
from tests.external_client import NAMED, ExternalClientLab, open_external_client
from tests.fleet.harness import FinishedRun, Lab

from .harness import SUITES, run_suite

MINE = "*.example.test"
SWITCHES = "chunking=1&bundling=1&deduplication=1&delta=1&compression=smart"


def run(
    lab: Lab, desk: ExternalClientLab, suite: str, *args: str, timeout_s: float = 60.0, **options: Any
) -> FinishedRun:
    """Run a suite as the user of the desk would."""
    folder, _, test = suite.partition("::")
    path = SUITES / folder / f"test_{folder}.py"
    words = (f"{path}{'::' if test else ''}{test}", "-rs", "--client", desk.spec(**options), *args)
    ended = lab.run(*words, enter=desk.enter, timeout_s=timeout_s)
    assert ended.leftovers == []
    assert not list(desk.pair.folder.glob("cloudbench-*")), "what was written is removed"
    return ended


def entry(ended: FinishedRun) -> Mapping[str, Any]:
    assert ended.entries, ended.text
    info: Mapping[str, Any] = next(iter(ended.entries.values()))["extra_info"]
    return info


@pytest.mark.slow
def test_traffic_of_copies_excludes_another_program(lab: Lab, tmp_path: Path) -> None:
    """A client that deduplicates sends one of three equal files of 2 MB."""
    with open_external_client(f"reference?deduplication=1&connections=per-file&{NAMED}", tmp_path / "desk") as desk:
        desk.start_other_program()
        ended = run(lab, desk, "sync_capabilities", "-k", "test_table_4_7", names=MINE)
    assert ended.counts()["passed"] == 1, ended.text
    info = entry(ended)
    assert info["traffic_mb"] == pytest.approx(2, rel=0.1)
    assert info["setting"]["link"]["mode"] == "the user's own network, not shaped"
    assert info["setting"]["link"]["seen_servers"] == ["files.example.test"]
    assert ended.lines_with("the user's own client on interface")
    assert not ended.lines_with("on this machine")


@pytest.mark.slow
@pytest.mark.truth  # beside busy processes, the pauses that show chunks may not be told from others
@pytest.mark.parametrize("switches", ["", f"{SWITCHES}&"], ids=["none", "all"])
def test_verdicts_match_the_settings_of_the_client(lab: Lab, tmp_path: Path, switches: str) -> None:
    """Its connection was open before, as a desktop client's is."""
    with open_external_client(f"reference?{switches}{NAMED}", tmp_path / "desk") as desk:
        desk.start_nameless_program(10)
        server = desk.link.address("server")
        ended = run(lab, desk, "sync_capabilities::test_table_1", timeout_s=300, names=MINE, servers=server)
    assert ended.counts()["passed"] == 1, ended.text
    info_by_capability = {
        name: benchmark["extra_info"]
        for benchmark in ended.entries.values()
        for name in CAPABILITIES
        if name in benchmark["extra_info"]
    }
    assert {name: info_by_capability[name][name] for name in CAPABILITIES} == dict.fromkeys(
        CAPABILITIES, "yes" if switches else "no"
    )


@pytest.mark.slow
def test_performance(lab: Lab, tmp_path: Path) -> None:
    with open_external_client("reference", tmp_path / "desk") as desk:
        ended = run(lab, desk, "sync_performance", servers=desk.link.address("server"), timeout_s=180)
    assert ended.counts()["passed"] == 1, ended.text
    info = next(
        benchmark["extra_info"] for benchmark in ended.document["benchmarks"] if "1x1MB-binary" in benchmark["fullname"]
    )
    assert 0 < info["overhead"] < 0.15
    assert info["completion"] > 0.02
    assert ended.lines_with("the user's own client on interface")


@pytest.mark.slow
def test_idle(lab: Lab, tmp_path: Path) -> None:
    with open_external_client(f"reference?polling=1&connections=per-file&{NAMED}", tmp_path / "desk") as desk:
        desk.start_other_program()
        ended = run(lab, desk, "idle", "--idle-seconds", "6", verified=False, names=MINE)
    assert ended.counts() == {"passed": 1, "skipped": 1}, ended.text
    assert ended.lines_with("it was already running, so its start cannot be measured")
    assert entry(ended)["polling_period_s"] == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_idle_is_skipped_if_nameless_flows_may_be_the_client(lab: Lab, tmp_path: Path) -> None:
    with open_external_client(f"reference?{NAMED}", tmp_path / "desk") as desk:
        desk.start_nameless_program(100)
        ended = run(lab, desk, "idle::test_idle", "--idle-seconds", "2", verified=False, names=MINE)
    assert ended.counts() == {"skipped": 1}, ended.text
    assert ended.lines_with("were in flows without a name, which may or may not be the client's")


@pytest.mark.slow
def test_updates(lab: Lab, tmp_path: Path) -> None:
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path / "desk") as desk:
        ended = run(lab, desk, "updates", "-k", "test_table_1 and 100KB", names=MINE)
    assert ended.counts()["passed"] == 1, ended.text
    assert 1 < entry(ended)["tue"] < 1.4


def test_external_client_without_a_rule_is_skipped(lab: Lab, tmp_path: Path) -> None:
    with open_external_client(f"reference?{NAMED}", tmp_path / "desk") as desk:
        ended = run(lab, desk, "sync_capabilities", "-k", "test_table_4_7", verified=False, names=MINE)
    assert ended.counts()["skipped"] == 1, ended.text
    assert ended.lines_with("cannot tell whether it is in sync; give verify=COMMAND or quiet_s=SECONDS")
    assert not ended.entries


def test_missing_capture_right_skips_with_the_command_to_grant_it(lab: Lab, tmp_path: Path) -> None:
    """The interface is one of this machine, without rights. A missing interface is skipped in the same way."""
    mirrored = tmp_path / "mirrored"
    mirrored.mkdir()
    forbidden = tmp_path / "bin"
    forbidden.mkdir()
    (forbidden / "dumpcap").write_text(
        "#!/bin/sh\necho 'You do not have permission to capture on that device' >&2\nexit 1\n"
    )
    (forbidden / "dumpcap").chmod(0o755)
    spec = f"external?folder={mirrored}&interface=lo&names={MINE}&verify=true"
    words = ("--client", spec, "-k", "test_table_4_7")
    ended = lab.run(
        str(SUITES / "sync_capabilities"),
        "-rs",
        *words,
        env={"PATH": f"{forbidden}:/usr/bin:/bin", "CI": "true"},  # pytest then shortens no line
    )
    assert ended.counts()["skipped"] == 1, ended.text
    assert ended.lines_with("dumpcap is not allowed to capture here; any one of these allows it"), ended.text
    assert not list(mirrored.iterdir())


@pytest.mark.parametrize(
    ("suite", "reason"),
    [
        ("mobile", "on the user's own network, which cannot be shaped here"),
        ("propagation", "external has no second device"),
    ],
)
def test_tests_of_other_networks_or_devices_are_skipped(lab: Lab, tmp_path: Path, suite: str, reason: str) -> None:
    mirrored = tmp_path / "mirrored"
    mirrored.mkdir()
    spec = f"external?folder={mirrored}&interface=lo&names={MINE}&verify=true"
    ended = run_suite(lab, suite, "--client", spec)
    assert set(ended.counts()) == {"skipped"}, ended.text
    assert ended.lines_with(reason)
