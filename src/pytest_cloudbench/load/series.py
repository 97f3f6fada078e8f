"""A long series of rounds, on all agents, that can be resumed after a stop.

What may live here: the controller's half, which keeps the state and decides whether there is time for another round,
and the agents' half, which asks it. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError, convert

from pytest_cloudbench.fleet.run import RunFacts, slug
from pytest_cloudbench.load.messages import (
    SeriesAdd,
    SeriesLines,
    SeriesNext,
    SeriesOpen,
    SeriesPage,
    SeriesPlan,
    SeriesRound,
)
from pytest_cloudbench.model import ResultsError, UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.results.series import SeriesFile

_PAGE = 200


class SeriesKeeper:
    """The controller's half: what is known about every series of this session."""

    def __init__(self, facts: RunFacts, invoked_in: Path) -> None:
        self._facts, self._invoked_in = facts, invoked_in
        self._open: dict[str, tuple[SeriesFile, SeriesPlan, float]] = {}

    def answers(self) -> dict[str, Callable[[str, Any], Any]]:
        """What agents can ask for, by name. Each raises ResultsError and UsageError."""
        return {
            "series-open": lambda _, asked: self.begin(SeriesOpen.from_plain(asked)),
            "series-next": lambda _, asked: self.next(SeriesNext.from_plain(asked)),
            "series-add": lambda _, asked: self.add(SeriesAdd.from_plain(asked)),
            "series-page": lambda _, asked: self.page(SeriesPage.from_plain(asked)),
            "series-end": lambda _, name: self.end(name),
            "series-now": lambda _, __: time.time(),
        }

    def close(self) -> None:
        """Close all files."""
        for file, _, _ in self._open.values():
            file.close()
        self._open.clear()

    def begin(self, asked: SeriesOpen) -> None:
        """Begin a series, or continue one."""
        from pytest_cloudbench.results import series

        key, setup, plan = asked.key, asked.setup, asked.plan
        folder = Path(self._facts.results).parent / "series"
        if asked.resume is None:
            name = slug(f"{asked.name}-{self._facts.run_id}")
            file = series.create_series(folder / f"{name}.jsonl", {"key": key, "setup": setup, "plan": asdict(plan)})
        else:
            path = self._invoked_in / asked.resume if asked.resume else series.find_latest(folder, key)
            if path is None:
                raise UsageError(f"resume: {folder} has no unfinished series of {key['test']} with {key['provider']}")
            file = series.resume_series(path, key, setup)
            if asked.keeps_plan:
                plan = _kept_plan(file)
        file.add({"session": {"at_s": time.time(), "run_id": self._facts.run_id}})
        self._open[asked.name] = (file, plan, time.monotonic())

    def next(self, asked: SeriesNext) -> SeriesRound:
        """Decide whether there is time for another round."""
        file, plan, since_s = self._open[asked.name]
        scale = self._facts.time_scale
        elapsed_s = (file.observed_s + time.monotonic() - since_s) * scale
        pause_s = plan.pause_s if asked.is_later else 0.0
        if plan.duration_s is None:
            goes_on = file.rounds < plan.rounds
        else:
            goes_on = not file.rounds or elapsed_s + pause_s < plan.duration_s
        return SeriesRound(file.rounds if goes_on else None, pause_s / scale)

    def add(self, asked: SeriesAdd) -> None:
        """Write down a round."""
        file, _, _ = self._open[asked.name]
        file.add({**asked.line, "ended_s": time.time()})

    def page(self, asked: SeriesPage) -> SeriesLines:
        """Return some lines of a series."""
        file, _, _ = self._open[asked.name]
        lines, offset = file.read_page(asked.offset, _PAGE)
        return SeriesLines(tuple(lines), offset, file.path.name, file.was_torn)

    def end(self, name: str) -> None:
        """A series is complete."""
        file, _, _ = self._open.pop(name)
        file.add({"end": {"at_s": time.time()}})
        file.close()


def _kept_plan(file: SeriesFile) -> SeriesPlan:
    """What a series was begun with."""
    try:
        return convert(file.header.get("plan"), SeriesPlan)
    except ValidationError as error:
        file.close()
        raise ResultsError(f"{file.path}: cannot continue with its own plan ({error}); start a new series") from error


class Series:
    """A series as a test sees it, the same on every agent.

    Args:
        experiment: whose test, provider and agent it is.
        setup: what all rounds of one series must have in common; plain data.
        plan: how long it lasts.
        resume: None for a new series, an empty text for the latest unfinished one, or the path of a state file.
        keeps_plan: whether a resumed series keeps its own plan.

    Raises FleetError if there is nothing to resume, or only another series.
    """

    def __init__(
        self, experiment: Experiment, setup: Mapping[str, Any], plan: SeriesPlan, resume: str | None, keeps_plan: bool
    ) -> None:
        self._agent, self._name, self._step, self._is_later = experiment.agent, experiment.name, 0, False
        key = {"test": experiment.test, "provider": experiment.provider.spec, "params": dict(experiment.params)}
        setup = {**setup, "time_scale": experiment.facts.time_scale}
        self._once("open", SeriesOpen(self._name, key, setup, plan, resume, keeps_plan))

    def rounds(self) -> Iterator[int]:
        """Yields the numbers of the remaining rounds; each must be added before the next one is requested.

        Raises ResultsError if one was not.
        """
        done = -1
        while not self._agent.stop.is_set():
            told = SeriesRound.from_plain(self._once("next", SeriesNext(self._name, self._is_later)))
            if told.number is None:
                return
            if told.number == done:
                raise ResultsError(f"round {done} of the series was not added")
            if told.pause_s:
                self._pause(told.pause_s)
            done, self._is_later = told.number, True
            yield done

    def now_s(self) -> float:
        """Seconds of the Unix epoch, by the controller's clock."""
        return float(self._once("now"))

    def add(self, line: Mapping[str, Any]) -> None:
        """Write down a round (``round`` is its number); when this returns, a stop cannot lose it."""
        self._once("add", SeriesAdd(self._name, line))

    def sum(self, fold: Callable[[Iterator[dict[str, Any]]], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return ``fold`` of all lines, including earlier sessions' lines; one agent runs it, all get its result.

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
        """Mark the series as finished: it is resumed only if its state file is named."""
        self._once("end", self._name)

    def _lines(self, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
        offset, is_first = 0, True
        while offset or is_first:
            page = SeriesLines.from_plain(self._agent.ask("series-page", SeriesPage(self._name, offset)))
            offset, is_first = page.offset, False
            told |= {"state_file": page.file, "was_torn": page.was_torn}
            yield from page.lines

    def _pause(self, pause_s: float) -> None:
        def wait() -> None:
            with self._agent.sign_of_life():
                self._agent.stop.wait(pause_s)

        self._step += 1
        self._agent.once(f"series:{self._step}:pause", wait)

    def _once(self, do: str, asked: Any = None) -> Any:
        self._step += 1
        return self._agent.once(f"series:{self._step}:{do}", lambda: self._agent.ask(f"series-{do}", asked))
