"""A long series of rounds, on all agents, that goes on after a stop.

What may live here: the controller's half, which keeps the state and decides whether there is time for another round,
and the agents' half, which asks it. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.fleet.facts import RunFacts, slug
from pytest_cloudbench.model import ResultsError, UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.experiment import Experiment
    from pytest_cloudbench.results.series import SeriesFile

__all__ = ["Plan", "Series", "SeriesKeeper", "duration_s"]

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PAGE = 200


def duration_s(text: str) -> float:
    """Seconds of a text such as ``90s``, ``6h``, ``20d`` or ``1d12h``; a bare number is seconds. Raises UsageError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if text.isdecimal():
        parts = [(text, "s")]
    elif not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"duration {text!r}: expected a number with s, m, h or d, such as 90s, 6h, 20d or 1d12h")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a series lasts.

    Attributes:
        rounds: so many rounds, where no duration is given.
        duration_s: no round but the first begins later than this; the time between sessions does not count.
        pause_s: between the end of a round and the next one. ``--time-scale`` divides both times.
    """

    rounds: int
    duration_s: float | None = None
    pause_s: float = 0.0


class SeriesKeeper:
    """The controller's half: what is known of every series of this session."""

    def __init__(self, facts: RunFacts, invoked_in: Path) -> None:
        self._facts, self._invoked_in = facts, invoked_in
        self._open: dict[str, tuple[SeriesFile, Plan, float]] = {}

    def answer(self, asked: Mapping[str, Any]) -> Any:
        """What an agent asks for; plain data. Raises ResultsError and UsageError."""
        todo: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "open": self._begin, "next": self._next, "add": self._add, "page": self._page, "end": self._end,
            "now": lambda _: time.time(),
        }  # fmt: skip
        return todo[asked["do"]](asked)

    def close(self) -> None:
        """Let go of all files."""
        for file, _, _ in self._open.values():
            file.close()
        self._open.clear()

    def _begin(self, asked: Mapping[str, Any]) -> None:
        from pytest_cloudbench.results import series

        key, setup, plan = asked["key"], asked["setup"], Plan(**asked["plan"])
        folder = Path(self._facts.results).parent / "series"
        if asked["resume"] is None:
            name = slug(f"{asked['name']}-{self._facts.run_id}")
            file = series.create(folder / f"{name}.jsonl", {"key": key, "setup": setup, "plan": asked["plan"]})
        else:
            path = self._invoked_in / asked["resume"] if asked["resume"] else series.latest(folder, key)
            if path is None:
                raise UsageError(f"--resume: {folder} has no unfinished series of {key['test']} with {key['provider']}")
            file = series.resume(path, key, setup)
            if asked["keeps_plan"]:
                plan = Plan(**file.header["plan"])
        file.add({"session": {"at_s": time.time(), "run_id": self._facts.run_id}})
        self._open[asked["name"]] = (file, plan, time.monotonic())

    def _next(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        file, plan, since_s = self._open[asked["name"]]
        scale = self._facts.time_scale
        elapsed_s = (file.observed_s + time.monotonic() - since_s) * scale
        pause_s = plan.pause_s if asked["is_later"] else 0.0
        if plan.duration_s is None:
            goes_on = file.rounds < plan.rounds
        else:
            goes_on = not file.rounds or elapsed_s + pause_s < plan.duration_s
        return {"round": file.rounds if goes_on else None, "pause_s": pause_s / scale}

    def _add(self, asked: Mapping[str, Any]) -> None:
        file, _, _ = self._open[asked["name"]]
        file.add({**asked["line"], "ended_s": time.time()})

    def _page(self, asked: Mapping[str, Any]) -> list[Any]:
        file, _, _ = self._open[asked["name"]]
        lines, offset = file.page(asked["offset"], _PAGE)
        return [lines, offset, file.path.name, file.was_torn]

    def _end(self, asked: Mapping[str, Any]) -> None:
        file, _, _ = self._open.pop(asked["name"])
        file.add({"end": {"at_s": time.time()}})
        file.close()


class Series:
    """A series as a test sees it, the same on every agent.

    Args:
        experiment: whose test, provider and agent it is.
        setup: what rounds must have in common to belong to one series; plain data.
        plan: how long it lasts.
        resume: None for a new series, an empty text for the latest unfinished one, or the path of a state file.
        keeps_plan: whether a resumed series goes on with its own plan.

    Raises FleetError when there is nothing to resume, or something else.
    """

    def __init__(
        self, experiment: Experiment, setup: Mapping[str, Any], plan: Plan, resume: str | None, keeps_plan: bool
    ) -> None:
        self._agent, self._name, self._step, self._is_later = experiment.agent, experiment.name, 0, False
        key = {"test": experiment.test, "provider": experiment.provider.spec, "params": dict(experiment.params)}
        setup = {**setup, "time_scale": experiment.facts.time_scale}
        self._once("open", key=key, setup=setup, plan=asdict(plan), resume=resume, keeps_plan=keeps_plan)

    def rounds(self) -> Iterator[int]:
        """Numbers of the rounds that are still to be done; each must be added before the next one is asked for.

        Raises ResultsError when one was not.
        """
        done = -1
        while not self._agent.stop.is_set():
            told = self._once("next", is_later=self._is_later)
            if told["round"] is None:
                return
            if told["round"] == done:
                raise ResultsError(f"round {done} of the series was not added")
            if told["pause_s"]:
                self._pause(told["pause_s"])
            done, self._is_later = told["round"], True
            yield done

    def now_s(self) -> float:
        """Seconds of the Unix epoch, by the controller's clock."""
        return float(self._once("now"))

    def add(self, line: Mapping[str, Any]) -> None:
        """Write down a round (``round`` is its number); when this returns, a stop cannot lose it."""
        self._once("add", line=dict(line))

    def sum(self, fold: Callable[[Iterator[dict[str, Any]]], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What ``fold`` makes of all lines, those of former sessions too; one agent does it, all get the same.

        Its result gets ``state_file`` and ``was_torn``.
        """

        def work() -> dict[str, Any]:
            told: dict[str, Any] = {}
            with self._agent.sign_of_life():
                return {**fold(self._lines(told)), **told}

        self._step += 1
        answer: Mapping[str, Any] = self._agent.once(f"series:{self._step}:sum", work)
        return answer

    def end(self) -> None:
        """Its entry is made: ``--resume`` does not find it any more."""
        self._once("end")

    def _lines(self, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
        offset, is_first = 0, True
        while offset or is_first:
            asked = {"do": "page", "name": self._name, "offset": offset}
            lines, offset, told["state_file"], told["was_torn"] = self._agent.ask("series", asked)
            yield from lines
            is_first = False

    def _pause(self, pause_s: float) -> None:
        def wait() -> None:
            with self._agent.sign_of_life():
                self._agent.stop.wait(pause_s)

        self._step += 1
        self._agent.once(f"series:{self._step}:pause", wait)

    def _once(self, do: str, **more: Any) -> Any:
        self._step += 1
        asked = {"do": do, "name": self._name, **more}
        return self._agent.once(f"series:{self._step}:{do}", lambda: self._agent.ask("series", asked))
