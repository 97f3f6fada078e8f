"""The controller's session, without processes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from pytest_cloudbench.fleet.session import ControllerSession

from .harness import Lab


def test_a_session_without_fleet_items_serves_nobody(pytestconfig: pytest.Config) -> None:
    session = ControllerSession(pytestconfig, "channel", "facts", lambda _: pytest.fail("it made a service"))
    session.lose_node("gw0")
    session.finish(None)  # type: ignore[arg-type]  # ignored if there is nobody to serve
    session.close()
    assert session.header() == []
    assert session._serving is None


def test_an_agent_without_a_process_of_its_own_is_not_killed(pytestconfig: pytest.Config) -> None:
    session = ControllerSession(pytestconfig, "channel", "facts", lambda _: pytest.fail("it made a service"))
    session.kill("main")
    session.close()


def test_an_agent_that_cannot_be_asked_for_want_of_a_thread_is_not_taken_for_silent(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    session = ControllerSession(pytestconfig, "channel", "facts", lambda _: pytest.fail("it made a service"))
    session._gateways["gw0"] = SimpleNamespace(remote_status=lambda: pytest.fail("it was asked"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    answers = list[str]()
    session.ask("gw0", lambda: answers.append("gw0"))
    assert answers == ["gw0"]
    session.close()


def test_bad_input_that_shows_only_when_the_first_test_begins_is_a_usage_error(lab: Lab) -> None:
    (lab.folder / "claims.toml").write_text("no = table")
    lab.write("""
        def pytest_collection_finish(session):
            session.config.option.cloudbench_expectations = "claims.toml"
    """, "conftest.py")  # fmt: skip
    run = lab.write("def test_it(experiment): pass").run("--time-scale", "2", store=False)
    assert run.status == 4, run.text
    assert run.lines_with("ERROR: claims.toml")
    assert "INTERNALERROR" not in run.text


def test_a_spec_that_takes_the_place_of_a_provider_is_refused_in_one_line(lab: Lab) -> None:
    lab.write("""
        @pytest.mark.parametrize("provider", ["folder:objects"])
        def test_it(experiment, provider, payloads):
            experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=1)
    """)
    run = lab.run("-q")
    assert run.counts() == {"error": 1}, run.text
    assert run.lines_with("parametrize(\"provider\", ...) needs indirect=True: 'folder:objects' is a text")
    assert "Error" not in run.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["experiment", "provider", "lab"])
def test_fixture_requested_at_run_time_fails_with_advice(lab: Lab, name: str) -> None:
    lab.write(f"def test_late(request): request.getfixturevalue({name!r})")
    run = lab.run()
    assert run.counts() == {"failed": 1}, run.text
    assert run.lines_with("was asked for at run time (request.getfixturevalue): name it among the test's arguments")
    assert "Error" not in run.text
