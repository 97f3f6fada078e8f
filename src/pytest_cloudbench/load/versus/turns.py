"""Two sides measured in turns by one test (``--cloudbench-versus``): the agents' half.

What may live here: running a test once per block on the side whose turn it is, and the two providers behind one
fixture. The controller's half is ``load.versus.contest``. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.protocol import run_phases, tear_down
from pytest_cloudbench.load.item import TURN
from pytest_cloudbench.load.messages import BlockEnded, Turn
from pytest_cloudbench.model import FleetError, ServiceError, UsageError, did_you_mean
from pytest_cloudbench.providers import Provider

if TYPE_CHECKING:
    from pytest_cloudbench.drivers.base import Driver
    from pytest_cloudbench.providers.for_agents import Provided

_SIDES = pytest.StashKey["_Sides"]()
_SIDE = pytest.StashKey[str]()
_SETUP_S = 600.0


def check_options(option: Any) -> None:
    """Check what the command line says of a comparison. Raises UsageError."""
    if not option.cloudbench_versus:
        for name in ("setup", "metric"):
            if getattr(option, f"cloudbench_versus_{name}"):
                raise UsageError(f"cloudbench_versus_{name}: needs --cloudbench-versus SPEC, the other side")
        return
    if re.match(r"[\w-]+@", option.cloudbench_versus):
        raise UsageError(
            f"--cloudbench-versus {option.cloudbench_versus}: a Python SDK is loaded once per process, so two versions "
            "of it cannot be two sides: measure each in a virtual environment of its own, then `cloudbench compare` "
            "the two runs"
        )
    if option.cloudbench_fail:
        raise UsageError("--cloudbench-fail judges single runs, --cloudbench-versus makes pairs: leave one out")
    from pytest_cloudbench.judge.paired import COMPARED

    if not COMPARED.keys() >= {*option.cloudbench_versus_metric}:
        from pytest_cloudbench.results.installed import learn_installed

        learn_installed()  # it may be a conclusion of a suite
    for metric in option.cloudbench_versus_metric:
        if metric not in COMPARED:
            hint = did_you_mean(metric, COMPARED)
            raise UsageError(f"cloudbench_versus_metric {metric}: no such metric{hint}")
    try:
        shlex.split(option.cloudbench_versus_setup or "")
    except ValueError as error:
        raise UsageError(f"cloudbench_versus_setup: not a command ({error})") from error


# --- two providers behind one fixture ---------------------------------------------------------------


class _Current(Provider):
    """The provider whose turn it is. What either of them opens is open for both."""

    def __init__(self, side: Provider) -> None:
        super().__init__(side.spec)
        self._side = side

    @property
    def opened(self) -> tuple[Driver, Provided]:
        """The connected driver of this side, and what is known about it."""
        return self._side.opened

    def change_to(self, side: Provider) -> None:
        """Be another provider from now on, connected or not."""
        self._side.has_answered = self.has_answered
        self._side, self.spec, self.has_answered = side, side.spec, side.has_answered

    def close(self) -> None:
        """Close this side's connections, if there are any."""
        self._side.close()


class _Sides:
    """Both providers, each connected at most once; ``now`` is one of them at a time."""

    def __init__(self, make: Callable[[str], Provider]) -> None:
        self._make = make
        self._made = {side: make(side) for side in "AB"}
        self.now = _Current(self._made["A"])

    def turn(self, side: str, *, anew: bool) -> None:
        """Make it a side's turn; ``anew`` closes what this process has open to it, since it may be gone."""
        if anew:
            self._made[side].close()
            self._made[side] = self._make(side)
        self.now.change_to(self._made[side])

    def close(self) -> None:
        for provider in self._made.values():
            provider.close()


def provided(config: pytest.Config, make: Callable[[str], Provider]) -> Iterator[Provider]:
    """Yields what the ``provider`` fixture gives where two sides are measured in turns.

    ``make`` returns the provider of side ``A`` or ``B``, which connects at first use.
    """
    sides = config.stash[_SIDES] = _Sides(make)
    sides.turn(config.stash.get(_SIDE, "A"), anew=False)
    yield sides.now
    del config.stash[_SIDES]
    sides.close()


# --- one test, block by block -------------------------------------------------------------------------


def run_in_turns(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> list[pytest.TestReport]:
    """Run an item once per block until the controller has seen enough. Return the reports of the last block.

    Fixtures of the test's own are made anew for each block, those of its module and session stay.
    """
    reports: list[pytest.TestReport] = []
    turn = _next(agent, 0)
    while turn is not None and not turn.is_over:
        item.stash[TURN] = turn
        try:
            _prepare(item.config, turn, agent)
        except (FleetError, ServiceError) as error:
            reports = [pytest.TestReport(item.nodeid, item.location, {}, "failed", str(error), "call")]
        else:
            reports = run_phases(item, item.parent, agent)
        if any(report.failed for report in reports):  # the others go on without this agent, and find it gone
            for report in reports:
                report.sections.append(("cloudbench", f"block {turn.number}, side {turn.side}"))
            break
        turn = _next(agent, turn.number + 1, is_skipped=any(report.skipped for report in reports))
    if TURN in item.stash:
        del item.stash[TURN]
    if reports and turn is not None and turn.is_over:
        reports[-1].user_properties += turn.properties.items()
    return [*reports, *tear_down(item, nextitem)]


def _next(agent: Agent, number: int, *, is_skipped: bool = False) -> Turn | None:
    try:
        return Turn.from_plain(agent.gather(f"turn:{number}", BlockEnded(is_skipped)))
    except FleetError:  # the controller is gone, which ``leave`` finds out as well
        return None


def _prepare(config: pytest.Config, turn: Turn, agent: Agent) -> None:
    """Make it a side's turn, after the user's command for it, which one agent runs for all.

    Raises ServiceError, or FleetError where another agent ran it, in one line.
    """
    command = config.option.cloudbench_versus_setup
    if command:
        with agent.sign_of_life():
            agent.once(f"setup:{turn.number}", lambda: _run_command(config, command, turn))
    config.stash[_SIDE] = turn.side
    if _SIDES in config.stash:
        config.stash[_SIDES].turn(turn.side, anew=bool(command))


def _run_command(config: pytest.Config, command: str, turn: Turn) -> None:
    told = {"CLOUDBENCH_SIDE": turn.side, "CLOUDBENCH_BLOCK": str(turn.number), "CLOUDBENCH_PAIR": str(turn.pair)}
    where = f"cloudbench_versus_setup {command!r}, side {turn.side}, block {turn.number}"
    try:
        with TemporaryFile() as out:  # no pipe: a server that the command leaves running would keep it open
            done = subprocess.run(
                shlex.split(command), cwd=config.invocation_params.dir, env={**os.environ, **told}, check=False,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=_SETUP_S,
            )  # fmt: skip
            out.seek(0)
            lines = out.read().decode(errors="replace").strip().splitlines()
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"{where}: still running after {_SETUP_S:.0f} s; it must end") from error
    except OSError as error:
        raise ServiceError(f"{where}: cannot be started ({error.strerror or error})") from error
    if done.returncode:
        raise ServiceError(f"{where}: ended with status {done.returncode}: {lines[-1] if lines else 'it said nothing'}")
