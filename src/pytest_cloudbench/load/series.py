"""A long series of rounds, on all agents, that can be resumed after a stop.

What may live here: the controller's half, which keeps the state and decides whether there is time for another round,
and the agents' half, which asks it. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import json
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
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.printable import shorten_path
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.results.series import SeriesFile

_LINES_PER_PAGE = 200


class SeriesKeeper:
    """The controller's half: the state of every series of this session."""

    def __init__(self, facts: RunFacts, invoked_in: Path) -> None:
        self._facts, self._start_folder = facts, invoked_in
        self._open: dict[str, tuple[SeriesFile, SeriesPlan, float]] = {}
        self._of_tests: dict[str, SeriesFile] = {}

    def answers(self) -> dict[str, Callable[[str, Any], Any]]:
        """Return the handlers of agents' requests by name. Each raises ResultsError and UsageError."""
        return {
            "series-next": lambda _, message: self.next(SeriesNext.from_plain(message)),
            "series-page": lambda _, message: self.page(SeriesPage.from_plain(message)),
            "series-end": lambda _, name: self.end(name),
            "series-now": lambda _, __: time.time(),
        }

    def close(self) -> None:
        """Close all files."""
        for file, _, _ in self._open.values():
            file.close()
        self._open.clear()

    def describe_stopped(self) -> list[str]:
        """Return a line for each series that has rounds and has not ended: where it is, and how it goes on."""
        lines = []
        for name, (file, _, _) in self._open.items():
            path = shorten_path(file.path, self._start_folder)
            rounds = format_count(file.rounds, "round")
            lines += [f"{name}: stopped after {rounds}; to continue: --resume {path}"] if file.rounds else []
        return lines

    def begin(self, message: SeriesOpen, nodeid: str) -> None:
        """Begin the series of a test, or continue one."""
        from pytest_cloudbench.results import series

        key, setup, plan = message.key, message.setup, message.plan
        folder = Path(self._facts.results).parent / "series"
        if message.resume is None:
            name = f"{slug(message.name)}-{self._facts.run_id}"
            file = series.create_series(folder / f"{name}.jsonl", {"key": key, "setup": setup, "plan": asdict(plan)})
        else:
            path = self._start_folder / message.resume if message.resume else series.find_latest(folder, key)
            if path is None:
                raise UsageError(f"resume: {folder} has no unfinished series of {key['test']} with {key['provider']}")
            file = series.resume_series(path, key, setup)
            if message.keeps_plan:
                plan = _recorded_plan(file)
        file.add({"session": {"at_s": time.time(), "run_id": self._facts.run_id}})
        self._open[message.name] = (file, plan, time.monotonic())
        self._of_tests[nodeid] = file

    def describe_differences(self, nodeid: str, conditions: Mapping[str, Any]) -> str:
        """Return in words how many rounds of a test's series were done under other conditions than these.

        Empty if there are none, or no series.
        """
        from pytest_cloudbench.judge.baseline import describe_differences

        if (file := self._of_tests.get(nodeid)) is None:
            return ""
        differences = {text: describe_differences(json.loads(text), conditions) for text in file.rounds_under}
        return "; ".join(
            f"{file.rounds_under[text]} of {format_count(file.rounds, 'round')} {difference}"
            for text, difference in differences.items() if difference
        )  # fmt: skip

    def next(self, message: SeriesNext) -> SeriesRound:
        """Decide whether there is time for another round."""
        file, plan, since_s = self._open[message.name]
        scale = self._facts.time_scale
        elapsed_s = (file.observed_s + time.monotonic() - since_s) * scale
        pause_s = plan.pause_s if message.is_later else 0.0
        if plan.duration_s is None:
            goes_on = file.rounds < plan.rounds
        else:
            goes_on = not file.rounds or elapsed_s + pause_s < plan.duration_s
        return SeriesRound(file.rounds if goes_on else None, pause_s / scale)

    def add(self, message: SeriesAdd, conditions: Mapping[str, Any]) -> None:
        """Write a round into the state file, and the conditions under which it was done."""
        file, _, _ = self._open[message.name]
        file.note_conditions(conditions)
        file.add({**message.line, "ended_s": time.time()})

    def page(self, message: SeriesPage) -> SeriesLines:
        """Return some lines of a series."""
        file, _, _ = self._open[message.name]
        lines, offset = file.read_page(message.offset, _LINES_PER_PAGE)
        return SeriesLines(tuple(lines), offset, file.path.name, file.was_torn)

    def end(self, name: str) -> None:
        """Mark a series as complete, and close its file."""
        file, _, _ = self._open.pop(name)
        file.add({"end": {"at_s": time.time()}})
        file.close()


def _recorded_plan(file: SeriesFile) -> SeriesPlan:
    """Return the plan with which a series was begun. Raises ResultsError if it cannot be read."""
    try:
        return convert(file.header.get("plan"), SeriesPlan)
    except ValidationError as error:
        file.close()
        raise ResultsError(f"{file.path}: cannot continue with its own plan ({error}); start a new series") from error


class Series:
    """A series as a test sees it, the same on every agent.

    Args:
        experiment: gives the test, the provider and the agent.
        setup: settings that all rounds of one series must share, as plain data.
        plan: the number of rounds, or their duration.
        resume: None for a new series, an empty text for the latest unfinished one, or the path of a state file.
        keeps_plan: whether a resumed series keeps its own plan.

    Raises FleetError if there is nothing to resume, or only another series.
    """

    def __init__(
        self, experiment: Experiment, setup: Mapping[str, Any], plan: SeriesPlan, resume: str | None, keeps_plan: bool
    ) -> None:
        self._agent, self._name, self._provider = experiment.agent, experiment.name, experiment.provider.spec
        self._step, self._is_later = 0, False
        provider = redact.mask_named(self._provider)
        key = {"test": experiment.test, "provider": provider, "params": dict(experiment.params)}
        setup = {**setup, "time_scale": experiment.facts.time_scale}
        self._ask_once("open", SeriesOpen(self._name, key, setup, plan, resume, keeps_plan))

    def rounds(self) -> Iterator[int]:
        """Yield the numbers of the remaining rounds. Each must be added before the next one is requested.

        Raises ResultsError if one was not.
        """
        last = -1
        while not self._agent.stop.is_set():
            series_round = SeriesRound.from_plain(self._ask_once("next", SeriesNext(self._name, self._is_later)))
            if series_round.number is None:
                return
            if series_round.number == last:
                raise ResultsError(f"round {last} of the series was not added")
            if series_round.pause_s:
                self._wait_for_all(series_round.pause_s)
            last, self._is_later = series_round.number, True
            yield last

    def now_s(self) -> float:
        """Return the seconds since the Unix epoch, by the controller's clock."""
        return float(self._ask_once("now"))

    def add(self, line: Mapping[str, Any]) -> None:
        """Write a round into the state file (``round`` is its number). After that, a stop cannot lose it."""
        self._ask_once("add", SeriesAdd(self._name, self._provider, line))

    def sum(self, fold: Callable[[Iterator[dict[str, Any]]], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return ``fold`` of all lines, also those of earlier sessions. One agent runs it, and all get its result.

        The keys ``state_file`` and ``was_torn`` are added to the result (see ``SeriesLines``).
        """

        def work() -> dict[str, Any]:
            state: dict[str, Any] = {}
            with self._agent.sign_of_life():
                return {**fold(self._read_all_lines(state)), **state}

        self._step += 1
        answer: Mapping[str, Any] = self._agent.once(f"series:{self._step}:sum", work)
        return answer

    def end(self) -> None:
        """Mark the series as finished. From then on it is resumed only if its state file is named."""
        self._ask_once("end", self._name)

    def _read_all_lines(self, state: dict[str, Any]) -> Iterator[dict[str, Any]]:
        offset, is_first = 0, True
        while offset or is_first:
            page = SeriesLines.from_plain(self._agent.ask("series-page", SeriesPage(self._name, offset)))
            offset, is_first = page.offset, False
            state |= {"state_file": page.file, "was_torn": page.was_torn}
            yield from page.lines

    def _wait_for_all(self, pause_s: float) -> None:
        def wait() -> None:
            with self._agent.sign_of_life():
                self._agent.stop.wait(pause_s)

        self._step += 1
        self._agent.once(f"series:{self._step}:pause", wait)

    def _ask_once(self, name: str, message: Any = None) -> Any:
        self._step += 1
        return self._agent.once(f"series:{self._step}:{name}", lambda: self._agent.ask(f"series-{name}", message))
