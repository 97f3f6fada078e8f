"""The ``client_run`` fixture: how an item measures a sync client.

What may live here: one agent measures, all agents conclude. A link and a capture want a quiet machine, so the others
wait meanwhile, and node ids and entries are the same with and without them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import extras
from pytest_cloudbench.fleet.facts import RunFacts, slug
from pytest_cloudbench.model import UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.clients.base import SyncClient
    from pytest_cloudbench.fleet.agent import Agent
    from pytest_cloudbench.fleet.experiment import Experiment, Result

__all__ = ["ClientRun", "Place", "client_run_of"]


class Place:
    """Where a measurement may write.

    Attributes:
        workdir: an empty folder that is gone afterwards.
        captures: a folder for captures; it stays with the run's records where the user asked for that.
        seed: what contents are made from; new for each run and item.
    """

    def __init__(self, workdir: Path, captures: Path, seed: str) -> None:
        self.workdir, self.captures, self.seed = workdir, captures, seed


class _Named:
    """A client in the place of a provider: something with a name, versions and no emulator."""

    profile = None
    is_kept = False

    def __init__(self, spec: str) -> None:
        self.spec, self._versions = spec, dict[str, str]()

    @property
    def driver(self) -> _Named:
        return self

    def versions(self) -> Mapping[str, str]:
        return self._versions

    def learn(self, versions: Mapping[str, str]) -> None:
        self._versions.update(versions)


class ClientRun:
    """One item's way to measure the client of ``--client``.

    Attributes:
        spec: as the user named it.
        keep_captures: whether captures stay with the run's records.
    """

    def __init__(
        self, spec: str, agent: Agent, experiment: Experiment, facts: RunFacts, named: _Named, *, keep_captures: bool
    ) -> None:  # fmt: skip
        self.spec, self._agent, self._experiment, self._facts = spec, agent, experiment, facts
        self._named, self.keep_captures = named, keep_captures

    def measure(self, work: Callable[[SyncClient, Place], dict[str, Any]], **options: str) -> dict[str, Any]:
        """Let one agent do ``work`` with a client that is not prepared yet; all get its plain data.

        Skips, with the reason, where a link, a capture or a program is not to be had here. ``client_versions`` of the
        data become versions of the entry. ``options`` are the client's where the user said nothing of them; those that
        were taken are in ``added_options`` of the data.
        """
        client, added = self._client(options)  # a wrong name is an error everywhere
        done: dict[str, Any] = self._agent.once("measure", lambda: self._measured(work, client))
        done["added_options"] = added
        if "skip" in done:
            pytest.skip(str(done["skip"]))
        self._named.learn(done.get("client_versions", {}))
        return done

    def conclude(
        self, metrics: Mapping[str, Any], rounds_s: Sequence[float], *, stats_of: str, columns: Sequence[str] = (),
        label: str = "", params: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None,
        published: Mapping[str, Any] | None = None, doubts: Sequence[str] = (), notes: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        """One entry; see ``Experiment.conclude``. ``params`` are the entry's own, where an item makes several."""
        if params is not None:
            self._experiment.params = dict(params)
        return self._experiment.conclude(
            metrics, rounds_s, stats_of=stats_of, columns=columns, label=label, facts=facts, published=published,
            doubts=doubts, notes=notes,
        )  # fmt: skip

    def settle(self, results: Sequence[Result], errors: Sequence[str] = ()) -> None:
        """Assert what is expected of all entries of an item; call it last.

        Raises like ``Result.check``; an item whose numbers may be wrong is skipped as inconclusive and not passed.
        ``errors``: why each set did not get to the server, empty where it did. A client of which none did fails.
        """
        if errors and all(errors):
            pytest.fail(f"client {self.spec} never synced: {errors[0]}", pytrace=False)
        for result in results:
            result.check()
        if doubts := list(dict.fromkeys(doubt for result in results for doubt in result.doubts)):
            pytest.skip(f"inconclusive: {'; '.join(doubts)}")

    def _client(self, options: Mapping[str, str]) -> tuple[SyncClient, dict[str, str]]:
        """The client, and the options that it was given beside the user's."""
        from pytest_cloudbench import clients

        said = {pair.partition("=")[0] for pair in self.spec.partition("?")[2].split("&")}
        added = {name: value for name, value in options.items() if name not in said}
        return clients.client(self.spec, **added), added

    def _measured(self, work: Callable[[SyncClient, Place], dict[str, Any]], client: SyncClient) -> dict[str, Any]:
        from pytest_cloudbench.capture import CaptureUnavailable
        from pytest_cloudbench.clients.base import ClientUnavailable
        from pytest_cloudbench.link import LinkUnavailable

        name = slug(self._experiment.nodeid)
        with self._agent.sign_of_life(), tempfile.TemporaryDirectory(prefix="cloudbench-") as folder:
            is_kept = self.keep_captures and self._agent.same_clock  # else the results are on another host
            root = Path(self._facts.results) if is_kept else Path(folder) / "captures"
            place = Place(Path(folder), root / name, f"{self._facts.seed}/{self._experiment.nodeid}")
            try:
                return work(client, place)
            except (ClientUnavailable, LinkUnavailable, CaptureUnavailable) as error:
                return {"skip": str(error)}


def client_run_of(item: pytest.Item, agent: Agent, spec: str, facts: RunFacts) -> ClientRun:
    """What the fixture gives. Raises UsageError for a run in scaled time: a real client has none."""
    from pytest_cloudbench.fleet.worker import experiment_of

    if facts.time_scale != 1.0:
        raise UsageError("--time-scale: a sync client runs in real time; leave the option out")
    extras.require("capture", f"client {spec}")
    named = _Named(spec)
    experiment: Experiment = experiment_of(item, agent, named, facts)
    experiment.params = {key: value for key, value in experiment.params.items() if key != "client_run"}
    keep_captures = bool(item.config.option.cloudbench_keep_captures)
    return ClientRun(spec, agent, experiment, facts, named, keep_captures=keep_captures)
