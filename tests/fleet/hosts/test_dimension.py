"""A session with one slower host. The host is found, and a run without it is not compared."""

from __future__ import annotations

import pytest

from pytest_cloudbench.model import Verb
from tests.fleet.harness import Lab
from tests.fleet.hosts.command_hosts import HERE, find_temporary, temporary

DELAY_S = 0.3
TESTS = """
    def test_put(experiment, payloads, provider):
        put, delay_s = provider.driver.put, float(os.environ.get("DELAY_S", "0"))
        def put_late(path, content):
            time.sleep(delay_s)
            return put(path, content)
        provider.driver.put = put_late
        experiment.run(payloads.random(50), arrival=FixedInterval(0.5), sensors=8, ops_per_sensor=16).check()
"""
NEAR = f'[[host]]\nname = "near"\nagents = 2\n{HERE}\n'
FAR = (
    f'[[host]]\nname = "far"\nagents = 2\n{HERE}\nenv = {{ DELAY_S = "{DELAY_S}" }}\nlabels = {{ location = "Lima" }}\n'
)


@pytest.mark.slow
def test_the_slower_host_is_found_and_a_run_without_it_is_not_compared(lab: Lab) -> None:
    objects = lab.folder / "objects"
    objects.mkdir()
    find_temporary(lab).mkdir()
    options = ("--provider", f"folder:{objects}", "--cloudbench-hosts", "hosts.toml", "--cloudbench-gate")
    lab.write(TESTS).write(NEAR + FAR, "hosts.toml")
    both = lab.run(*options, env=temporary(lab))
    [entry] = both.entries.values()
    near, far = (entry["extra_info"]["by_host"][name] for name in ("near", "far"))
    assert near["response_p50"] < DELAY_S <= far["response_p50"]
    assert near["ops"] + far["ops"] == 8 * 16
    assert [host["labels"] for host in entry["extra_info"]["hosts"]] == [{}, {"location": "Lima"}]
    if not entry["extra_info"]["doubts"]:
        ranked = both.text.partition("hosts compared")[2]
        assert [line.count("*") for line in ranked.splitlines() if line.startswith(("  near", "  far"))] == [2, 0]

    lab.write(NEAR, "hosts.toml")
    alone = lab.run(*options, env=temporary(lab))
    assert "hosts compared" not in alone.text
    assert alone.lines_with("differed in agents (4, here 2), hosts (with far, which is missing here)")


READINESS = """
    from pytest_cloudbench.load.probes.readiness import measure_readiness

    def test_ready(experiment, payloads):
        measure_readiness(experiment, payloads.random(5000), 2, deadline_s=20)
"""


@pytest.mark.slow
def test_readiness_names_uploading_and_reading_host(lab: Lab) -> None:
    objects = lab.folder / "objects"
    objects.mkdir()
    find_temporary(lab).mkdir()
    lab.write(READINESS).write(NEAR + FAR, "hosts.toml")
    run = lab.run("--provider", f"folder:{objects}", "--cloudbench-hosts", "hosts.toml", env=temporary(lab))
    assert run.status == 0, run.text
    [entry] = run.entries.values()
    info = entry["extra_info"]
    assert (info["uploaded_from"], info["read_from"], info["reader_host"]) == ("near", "far", "another host")
    assert run.lines_with("note: files were uploaded from near, and read from far")
    assert abs(info["clock_offset_ms"]) <= info["clock_bound_ms"], "it is the same clock"
    table = run.records()["test_ready"]
    assert set(zip(table.verb, table.host, strict=True)) == {(Verb.PUT, "near"), (Verb.GET, "far")}
