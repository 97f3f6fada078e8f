"""Two sides measured in turns by one test (``--cloudbench-versus``): the agents' half.

What may live here: runs of a test once per block, each on one side, and the two providers behind one fixture.
The controller's half is ``load.versus.contest``. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
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
_CURRENT_SIDE = pytest.StashKey[str]()
_SETUP_LIMIT_S = 600.0


def check_options(option: Any, modules: Iterable[object] = ()) -> None:
    """Check the options of a comparison. Raises UsageError.

    ``modules`` are loaded ones, such as ``conftest.py`` files, whose suites declare metrics.
    """
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
        from pytest_cloudbench.results.installed import learn_installed, learn_loaded

        learn_loaded(modules)  # the metric may be a conclusion of a suite
        learn_installed()
    for metric in option.cloudbench_versus_metric:
        if metric not in COMPARED:
            hint = did_you_mean(metric, COMPARED)
            raise UsageError(f"cloudbench_versus_metric {metric}: no such metric{hint}")
    try:
        words = shlex.split(option.cloudbench_versus_setup or "")
    except ValueError as error:
        raise UsageError(f"cloudbench_versus_setup: not a command ({error})") from error
    if option.cloudbench_versus_setup and not words:
        raise UsageError(f"cloudbench_versus_setup {option.cloudbench_versus_setup!r}: names no command")


# --- two providers behind one fixture ---------------------------------------------------------------


class _CurrentProvider(Provider):
    """The provider of the current side. It takes the place of both providers."""

    def __init__(self, side: Provider) -> None:
        super().__init__(side.spec)
        self._side = side

    @property
    def opened(self) -> tuple[Driver, Provided]:
        """The connected driver of this side, and the controller's answer about it."""
        return self._side.opened

    def change_to(self, side: Provider) -> None:
        """Become another provider, connected or not."""
        self._side.has_answered = self.has_answered
        self._side, self.spec, self.has_answered = side, side.spec, side.has_answered

    def close(self) -> None:
        """Close this side's connections, if there are any."""
        self._side.close()


class _Sides:
    """Both providers, each connected at most once. ``now`` is the current one."""

    def __init__(self, make: Callable[[str], Provider]) -> None:
        self._make_provider = make
        self._providers = {side: make(side) for side in "AB"}
        self.now = _CurrentProvider(self._providers["A"])

    def take_turn(self, side: str, *, anew: bool) -> None:
        """Switch to a side. ``anew`` closes this process's connections to it, because it may be gone."""
        if anew:
            self._providers[side].close()
            self._providers[side] = self._make_provider(side)
        self.now.change_to(self._providers[side])

    def close(self) -> None:
        for provider in self._providers.values():
            provider.close()


def provide_sides(config: pytest.Config, make: Callable[[str], Provider]) -> Iterator[Provider]:
    """Yield the value of the ``provider`` fixture in a comparison of two sides.

    ``make`` returns the provider of side ``A`` or ``B``, which connects at first use.
    """
    sides = config.stash[_SIDES] = _Sides(make)
    sides.take_turn(config.stash.get(_CURRENT_SIDE, "A"), anew=False)
    yield sides.now
    del config.stash[_SIDES]
    sides.close()


# --- one test, block by block -------------------------------------------------------------------------


def run_in_turns(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> list[pytest.TestReport]:
    """Run an item once per block until the controller ends the comparison. Return the reports of the last block.

    The test's own fixtures are made anew for each block. Those of its module and session stay.
    """
    reports: list[pytest.TestReport] = []
    turn = _next_turn(agent, 0)
    while turn is not None and not turn.is_over:
        item.stash[TURN] = turn
        try:
            _prepare_side(item.config, turn, agent)
        except (FleetError, ServiceError) as error:
            reports = [pytest.TestReport(item.nodeid, item.location, {}, "failed", str(error), "call")]
        else:
            reports = run_phases(item, item.parent, agent)
        if any(report.failed for report in reports):  # the other agents go on without this one, and find it gone
            for report in reports:
                report.sections.append(("cloudbench", f"block {turn.number}, side {turn.side}"))
            break
        turn = _next_turn(agent, turn.number + 1, is_skipped=any(report.skipped for report in reports))
    if TURN in item.stash:
        del item.stash[TURN]
    if reports and turn is not None and turn.is_over:
        reports[-1].user_properties += turn.properties.items()
    return [*reports, *tear_down(item, nextitem)]


def _next_turn(agent: Agent, number: int, *, is_skipped: bool = False) -> Turn | None:
    try:
        return Turn.from_plain(agent.gather(f"turn:{number}", BlockEnded(is_skipped)))
    except FleetError:  # the controller is gone, which ``leave`` finds out, too
        return None


def _prepare_side(config: pytest.Config, turn: Turn, agent: Agent) -> None:
    """Switch to a side, after the user's command for it, which one agent runs for all.

    Raises ServiceError, or FleetError if another agent ran the command. The message is one line.
    """
    command = config.option.cloudbench_versus_setup
    if command:
        with agent.sign_of_life():
            agent.once(f"setup:{turn.number}", lambda: _run_command(config, command, turn))
    config.stash[_CURRENT_SIDE] = turn.side
    if _SIDES in config.stash:
        config.stash[_SIDES].take_turn(turn.side, anew=bool(command))


def _run_command(config: pytest.Config, command: str, turn: Turn) -> None:
    variables = {"CLOUDBENCH_SIDE": turn.side, "CLOUDBENCH_BLOCK": str(turn.number), "CLOUDBENCH_PAIR": str(turn.pair)}
    where = f"cloudbench_versus_setup {command!r}, side {turn.side}, block {turn.number}"
    try:
        with TemporaryFile() as out:  # no pipe: a server that the command leaves running would keep it open
            process = subprocess.run(
                shlex.split(command), cwd=config.invocation_params.dir, env={**os.environ, **variables}, check=False,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=_SETUP_LIMIT_S,
            )  # fmt: skip
            out.seek(0)
            lines = out.read().decode(errors="replace").strip().splitlines()
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"{where}: still running after {_SETUP_LIMIT_S:.0f} s; it must end") from error
    except OSError as error:
        raise ServiceError(f"{where}: cannot be started ({error.strerror or error})") from error
    if process.returncode:
        raise ServiceError(f"{where}: ended with status {process.returncode}: {lines[-1] if lines else 'no output'}")
