"""Costs of runs on real accounts: the estimate, the bound, and the user's consent before anything is written."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.load.conductor.costs import Price, Spending, estimate_usd, load_work, price_of
from pytest_cloudbench.load.engine.operations import Deal, make_load_shape
from pytest_cloudbench.load.estimate import count_work
from pytest_cloudbench.load.messages import UNKNOWN_LOAD, LoadShape, Start, Subject
from pytest_cloudbench.load.request import EntryOptions, Files, Load
from pytest_cloudbench.model import UsageError, Verb
from pytest_cloudbench.providers import Providers
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns, wait_for
from pytest_cloudbench.workload.payload import RandomPayload
from pytest_cloudbench.workload.trace import Replay, parse_trace
from tests.fleet.harness import Lab
from tests.limits import HANG_S
from tests.runs import SPREAD, Spread

from .test_sessions import SMALL
from .tiny import server_for

PRICE = Price("a page", "2026-01-01", {"put": 0.01, "list": 0.1, "get": 0.001}, down_gb=2.0)


def make_start(operation: Verb = Verb.PUT, ops: int = 100, size_bytes: int = 0, prepared: int = 0) -> Start:
    subject = Subject("run", "node", "name", "name", "test", {}, "folder", "acme", None, True, {}, "none")
    return Start(subject, LoadShape(ops, size_bytes, prepared, operation=operation), EntryOptions(), 12.0)


def test_an_estimate_is_requests_and_bytes_that_leave() -> None:
    assert estimate_usd(PRICE, load_work(make_start().load), {}) == pytest.approx(100 * 0.01 + 0.1)
    assert estimate_usd(PRICE, load_work(make_start().load), {Verb.PUT: 3}) == pytest.approx(300 * 0.01 + 0.1)
    down = make_start(Verb.GET, ops=50, size_bytes=5_000_000_000, prepared=10)
    assert estimate_usd(PRICE, load_work(down.load), {}) == pytest.approx(50 * 0.001 + 10 * 0.01 + 0.1 + 5 * 2.0)
    assert estimate_usd(PRICE, load_work(make_start(Verb.DELETE).load), {}) == pytest.approx(0.1), (
        "what has no price costs nothing"
    )


def test_a_replayed_trace_costs_what_the_estimate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.load.conductor.costs.price_of", lambda scheme: PRICE)
    rows = "0,0,put,5000000000\n1,0,get,0\n2,0,get,0\n3,0,get,0\n4,0,stat,0\n"
    replay = Replay(parse_trace(f"time,sensor,operation,size\n{rows}"))
    load = Load(RandomPayload("seed", 1), arrival=replay, sensors=1, ops_per_sensor=5)
    deal, files = Deal.from_load(load, None), Files("/f", RandomPayload("seed", 1))
    shape = make_load_shape(load, deal, files, prepares=False)
    assert LoadShape.from_plain(shape.plain()) == shape
    usd = 0.01 + 3 * 0.001 + 0.1 + 15 * 2.0
    for work in (load_work(shape), count_work(load, deal, files)):
        assert work.ops == {Verb.PUT: 1, Verb.GET: 3, Verb.STAT: 1, Verb.LIST: 1}
        assert estimate_usd(PRICE, work, {}) == pytest.approx(usd)
    line = Spending(usd, True, lambda: None).begin(make_start().replace(load=shape), [("acme", {})])
    assert "about 5 operations, 5,000,000,000 bytes up, 15,000,000,000 down, at least 12 s, about $30.11" in line


def test_shipped_prices_have_a_source_and_a_date() -> None:
    for scheme in ("gcs", "dropbox"):
        price = price_of(scheme)
        assert price is not None
        assert price.source
        assert price.date
    # The example of Google's own page: 10,000 of class A, 50,000 of class B and 1 GB are $0.05, $0.02 and $0.12.
    gcs_price: Any = price_of("gcs")
    assert 10_000 * gcs_price.requests["put"] == pytest.approx(0.05)
    assert 50_000 * gcs_price.requests["get"] == pytest.approx(0.02)
    assert gcs_price.down_gb == 0.12
    assert price_of("nobody") is None


def test_the_bound_is_on_the_whole_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.load.conductor.costs.price_of", lambda scheme: PRICE)
    spending = Spending(2.5, True, lambda: None)
    assert spending.begin(make_start(), [("acme", {})]).endswith(
        "at least 12 s, about $1.10 without storage (prices of 2026-01-01)"
    )
    spending.begin(make_start(), [("acme", {})])
    with pytest.raises(UsageError, match=r"costs about \$1\.10, after \$2\.20 for those before: not started"):
        spending.begin(make_start(), [("acme", {})])
    spending.begin(make_start(ops=10), [("acme", {})])


def test_equal_children_are_an_account_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.load.conductor.costs.price_of", lambda spec: PRICE)
    accounts = Providers("x").accounts("mirror:s3://one,s3://two,dropbox,dropbox")
    assert [spec for spec, _ in accounts] == ["s3://one", "s3://two", "dropbox", "dropbox"]
    one, four = (
        Spending(None, True, lambda: None).begin(make_start(), charged) for charged in (accounts[:1], accounts)
    )
    assert "about $1.10 without storage" in one
    assert "about $4.40 without storage" in four
    with pytest.raises(UsageError, match=r"^s3, dropbox: a real account is used only if you agree"):
        Spending(None, False, lambda: None).check([spec for spec, _ in accounts])


def test_an_unknown_price_is_no_price_of_zero() -> None:
    assert Spending(None, True, lambda: None).begin(make_start(), [("nobody", {})]).endswith("price unknown")
    with pytest.raises(UsageError, match="the price of nobody is unknown"):
        Spending(1.0, True, lambda: None).begin(make_start(), [("nobody", {})])
    assert "no price per request (a subscription)" in Spending(0.0, True, lambda: None).begin(
        make_start(), [("dropbox", {})]
    )


def test_work_of_unknown_extent_has_no_estimate_and_fits_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    request = make_start().replace(load=UNKNOWN_LOAD)
    flat: list[tuple[str, dict[Verb, int]]] = [("dropbox", {})]
    assert "no price per request" in Spending(0.0, True, lambda: None).begin(request, flat)
    monkeypatch.setattr("pytest_cloudbench.load.conductor.costs.price_of", lambda spec: PRICE)
    line = Spending(None, True, lambda: None).begin(request, [("acme", {})])
    assert line == "acme: as many operations as it takes, cost not estimated"
    refusal = r"cloudbench_max_cost 5: nobody knows before how many operations this takes"
    with pytest.raises(UsageError, match=refusal):
        Spending(5.0, True, lambda: None).begin(request, [("acme", {})])
    on_no_files = request.replace(load=LoadShape(0, 0, arrival="ThinkTime(0)"))
    nothing = Spending(5.0, True, lambda: None).begin(on_no_files, [("acme", {})])
    assert nothing.startswith("acme: about 0 operations, 0 bytes up"), "a run on no files is known to do nothing"


@pytest.mark.parametrize(
    ("spec", "is_known"),
    [
        ("s3://b", True),
        ("s3+fast://b?region=eu-north-1", True),
        ("s3://b?endpoint=https://s3.eu-north-1.amazonaws.com", True),
        ("s3://b?endpoint=http://127.0.0.1:1", False),
        ("s3://b?endpoint=https://amazonaws.com.example.org", False),
        ("s3://b?endpoint=https://notamazonaws.com", False),
        ("s3://b?endpoint=http://[", False),
        ("gcs://b?endpoint=https://storage.googleapis.com", True),
        ("gcs://b?endpoint=http://localhost:4443", False),
    ],
)
def test_a_price_is_that_of_the_providers_own_hosts(spec: str, is_known: bool) -> None:
    assert (price_of(spec) is not None) == is_known


def test_the_price_of_another_service_of_the_same_api_is_unknown() -> None:
    other: list[tuple[str, dict[Verb, int]]] = [("s3://b?endpoint=http://127.0.0.1:1", {})]
    assert Spending(None, True, lambda: None).begin(make_start(), other).endswith("price unknown")
    with pytest.raises(UsageError, match=r"the price of s3 at 127\.0\.0\.1 is unknown"):
        Spending(1.0, True, lambda: None).begin(make_start(), other)


@pytest.mark.parametrize(
    ("usd", "amount"),
    [(0.0, "$0.00"), (0.000005, "$0.0000050"), (0.0123, "$0.012"), (0.5, "$0.50"), (1234.567, "$1234.57")],
)
def test_small_amount_is_shown_with_significant_digits(
    monkeypatch: pytest.MonkeyPatch, usd: float, amount: str
) -> None:
    price = Price("a page", "2026-01-01", {"put": usd})
    monkeypatch.setattr("pytest_cloudbench.load.conductor.costs.price_of", lambda spec: price)
    line = Spending(None, True, lambda: None).begin(make_start(ops=1), [("acme", {})])
    assert f"about {amount} without storage" in line


def test_a_user_is_asked_once_for_each_provider() -> None:
    questions: list[str] = []

    def ask(question: str) -> bool:
        questions.append(question)
        return True

    spending = Spending(None, False, lambda: ask)
    spending.check(["acme"])
    spending.begin(make_start(), [("dropbox", {})])
    spending.begin(make_start(), [("dropbox", {})])
    assert len(questions) == 1
    assert "about 100 operations, 0 bytes up, at least 12 s" in questions[0]
    with pytest.raises(UsageError, match="you did not agree; nothing was written"):
        Spending(None, False, lambda: lambda question: False).begin(make_start(), [("dropbox", {})])


# --- a whole run on an account ---


@pytest.fixture
def account(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Somebody's account at a service: its spec, and the folder of its files."""
    folder = tmp_path / "service"
    folder.mkdir()
    with server_for(folder, "the-password") as server:
        yield f"tiny:127.0.0.1:{server.server_address[1]}", folder


PASSWORD = {"CLOUDBENCH_TINY_PASSWORD": "the-password"}
SANDBOX = """
    import pytest
    from pytest_cloudbench import LiteralContent

    @pytest.mark.parametrize("number", range(3))
    def test_put(sandbox, number):
        folder = sandbox.folder()
        sandbox.driver.put(f"{folder}/a", LiteralContent(b"abc"))
        sandbox.remove(folder)
"""
DIRECT = """
    import pytest
    from pytest_cloudbench import LiteralContent

    @pytest.mark.parametrize("number", range(3))
    def test_direct(provider, fleet, number):
        provider.driver.put(f"/{fleet.name}-{number}", LiteralContent(b"abc"))
        provider.driver.delete(f"/{fleet.name}-{number}")
"""


@SPREAD
def test_nothing_is_written_to_an_account_before_somebody_agrees(
    lab: Lab, account: tuple[str, Path], spread: Spread
) -> None:
    spec, folder = account
    refused = lab.write(SMALL).run("--provider", spec, *spread, env=PASSWORD)
    assert refused.status == 1, refused.text
    assert "tiny: a real account is used only if you agree: add --cloudbench-yes" in refused.text
    assert list(folder.iterdir()) == []
    agreed = lab.run("--provider", spec, "--cloudbench-yes", *spread, env=PASSWORD)
    assert agreed.status == 0, agreed.text
    assert f"{spec}: about 12 operations, 600 bytes up, price unknown" in agreed.text
    assert list(folder.iterdir()) == []


def test_tests_with_a_sandbox_say_once_that_nobody_agreed(lab: Lab, account: tuple[str, Path]) -> None:
    spec, folder = account
    refused = lab.write(SANDBOX).run("--provider", spec, env=PASSWORD, store=False)
    assert refused.counts() == {"skipped": 2, "error": 1}, refused.text
    reasons = [line for line in refused.text.splitlines() if line.startswith("tiny: a real account is used only if")]
    assert len(reasons) == 1, refused.text
    assert "sandbox.py" not in refused.text, "no traceback"
    assert list(folder.iterdir()) == []


def test_a_bound_on_money_needs_a_price(lab: Lab, account: tuple[str, Path]) -> None:
    spec, folder = account
    run = lab.write(SMALL).run("--provider", spec, "--cloudbench-yes", "-ocloudbench_max_cost=1", env=PASSWORD)
    assert run.status == 1, run.text
    assert "the price of tiny is unknown" in run.text
    assert [path for path in folder.rglob("*") if path.is_file()] == []


class TerminalSession:
    """A session with two agents in a terminal of its own, as a user starts it. It asks before it writes."""

    def __init__(self, lab: Lab, account: tuple[str, Path], *argv: str) -> None:
        spec, self._folder = account
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--provider", spec, "-n", "2", *argv]
        variables = {
            name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")
        }
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.chdir(lab.folder)
            os.execve(command[0], command, variables | PASSWORD)
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the end of a terminal whose program has ended
            while data := os.read(self._terminal, 4096):
                self._output.extend(data)

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._output.decode()

    def wait_for_question(self) -> None:
        """Wait until it asks. Nothing is written before the answer."""
        assert wait_for(lambda: "Go on? [y/N]" in self.text, HANG_S, poll_s=0.05), self.text
        assert not [path for path in self._folder.rglob("*") if path.is_file()], "not before the answer"

    def answer(self, text: str) -> int:
        """Answer the question, and return the exit status of the session."""
        os.write(self._terminal, f"{text}\n".encode())
        _, status = os.waitpid(self._pid, 0)
        self._reader.join(HANG_S)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("answer", "passes", "think_s"), [("y", True, 0.0), ("n", False, 0.0), ("", False, 0.0), ("y", True, 5.0)]
)
def test_a_terminal_is_asked(lab: Lab, account: tuple[str, Path], answer: str, passes: bool, think_s: float) -> None:
    """The user may think for longer than the patience, because no silent agent is to blame for that."""
    lab.write(SMALL)
    session = TerminalSession(lab, account, *(["-ocloudbench_patience=2"] if think_s else []))
    session.wait_for_question()
    sleep_until_ns(due_ns(think_s))
    assert (session.answer(answer) == 0) == passes, session.text
    assert passes or "you did not agree" in session.text
    assert "no sign of life" not in session.text


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_is_asked_once_before_tests_use_a_sandbox(lab: Lab, account: tuple[str, Path], answer: str) -> None:
    spec, folder = account
    lab.write(SANDBOX)
    session = TerminalSession(lab, account)
    session.wait_for_question()
    assert (session.answer(answer) == 0) == (answer == "y"), session.text
    assert session.text.count("Go on? [y/N]") == 1, session.text
    assert f"{spec}: as many operations as it takes, price unknown" in session.text
    assert (f"provider {spec}: you did not agree; nothing was written" in session.text) == (answer == "n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("answer", "think_s"), [("y", 0.0), ("n", 0.0), ("y", 5.0)])
def test_a_terminal_is_asked_once_before_tests_use_a_driver(
    lab: Lab, account: tuple[str, Path], answer: str, think_s: float
) -> None:
    spec, folder = account
    lab.write(DIRECT)
    session = TerminalSession(lab, account, *(["-ocloudbench_patience=2"] if think_s else []))
    session.wait_for_question()
    sleep_until_ns(due_ns(think_s))
    assert (session.answer(answer) == 0) == (answer == "y"), session.text
    assert session.text.count("Go on? [y/N]") == 1, session.text
    assert f"{spec}: as many operations as it takes, price unknown" in session.text
    assert (f"provider {spec}: you did not agree; nothing was written" in session.text) == (answer == "n")
    assert "no sign of life" not in session.text
    assert list(folder.iterdir()) == []


def test_one_answer_is_for_all_kinds_of_tests(lab: Lab, account: tuple[str, Path]) -> None:
    lab.write(SMALL, "test_a.py").write(DIRECT, "test_b.py").write(SANDBOX, "test_c.py").write(SMALL, "test_d.py")
    session = TerminalSession(lab, account)
    session.wait_for_question()
    assert session.answer("y") == 0, session.text
    assert session.text.count("Go on? [y/N]") == 1, session.text


def test_a_bound_on_money_holds_for_tests_that_use_a_driver(lab: Lab, account: tuple[str, Path]) -> None:
    spec, folder = account
    unbound = lab.write(DIRECT).run("--provider", spec, "--cloudbench-yes", "-n", "2", env=PASSWORD, store=False)
    assert unbound.counts() == {"passed": 3}, unbound.text
    assert unbound.text.count(f"{spec}: as many operations as it takes, price unknown") == 1, unbound.text
    bound = lab.run("--provider", spec, "--cloudbench-yes", "-ocloudbench_max_cost=1", env=PASSWORD, store=False)
    assert bound.counts() == {"failed": 3}, bound.text
    assert "the price of tiny is unknown" in bound.text
    refused = lab.run("--provider", spec, env=PASSWORD, store=False)
    assert refused.counts() == {"failed": 3}, refused.text
    assert "tiny: a real account is used only if you agree: add --cloudbench-yes" in refused.text
    assert list(folder.iterdir()) == []


def test_a_bound_on_money_holds_for_tests_with_a_sandbox(lab: Lab, account: tuple[str, Path]) -> None:
    spec, folder = account
    run = lab.write(SANDBOX).run("--provider", spec, "--cloudbench-yes", "-ocloudbench_max_cost=1", env=PASSWORD)
    assert run.counts() == {"skipped": 2, "error": 1}, run.text
    assert "the price of tiny is unknown" in run.text
    assert list(folder.iterdir()) == []


def test_a_probe_of_unknown_extent_says_so_and_fits_no_bound_on_money(lab: Lab, account: tuple[str, Path]) -> None:
    spec, _ = account
    lab.write("""
        from pytest_cloudbench.load.conductor import costs
        costs.price_of = lambda spec: costs.Price("a page", "2026-01-01", {"put": 0.01})

        def test_it(experiment, payloads):
            with experiment.scratch(payloads.random(1)):
                pass
    """)
    run = lab.run("--provider", spec, "--cloudbench-yes", env=PASSWORD)
    assert run.lines_with(f"{spec}: as many operations as it takes, cost not estimated"), run.text
    bounded = lab.run("--provider", spec, "--cloudbench-yes", "-ocloudbench_max_cost=1", env=PASSWORD)
    assert (bounded.status, bounded.counts()) == (1, {"failed": 1})
    assert bounded.lines_with("nobody knows before how many operations this takes"), bounded.text


def test_service_started_by_the_run_costs_nothing(lab: Lab) -> None:
    run = lab.write(SMALL).run("--provider", "served:tiny.toml", "-ocloudbench_max_cost=0")
    assert run.status == 0, run.text
