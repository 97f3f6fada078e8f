"""Sync clients as tests see them: one client in a network, measured step by step, and entries of what was seen.

What may live here: what the ``sync_session`` fixture gives. It needs one worker and no other: its items are not fleet
items, and xdist shares them out as it does any test.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import clients, extras
from pytest_cloudbench.capture import CaptureUnavailable
from pytest_cloudbench.clients.base import ClientFacts, ClientUnavailable
from pytest_cloudbench.detect import Observation, Step, Verdict
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.experiment import Result, result_of
from pytest_cloudbench.fleet.facts import RunFacts, slug
from pytest_cloudbench.fleet.verdicts import failing_gates, properties, unmet_gates
from pytest_cloudbench.link import LinkUnavailable
from pytest_cloudbench.model import ClientError
from pytest_cloudbench.systems.session import SyncSession
from pytest_cloudbench.traffic.owners import nameless_doubt

__all__ = ["SyncItem", "SyncLab", "item_of", "must_have_synced"]


class SyncLab:
    """One client for all tests of a module; it starts when it is first needed.

    Args:
        spec: as ``--client`` has it.
        workdir: for both halves; on a file system that can rename.
        facts: the run's facts.
        agent: this process in the fleet; another one may have the same client.
        keep_captures: whether captures go to the results, too. They hold what the client sent.
    """

    def __init__(self, spec: str, workdir: Path, facts: RunFacts, agent: Agent, *, keep_captures: bool) -> None:
        self.spec, self.agent = spec, agent
        self._workdir, self._facts, self._keep_captures = workdir, facts, keep_captures
        self._client = clients.client(spec)
        self._session: SyncSession | None = None
        self._missing = extras.missing("capture")
        self._verdicts: dict[str, Verdict] | None = None

    @property
    def session(self) -> SyncSession:
        """The session, started; skips the test where something that it needs is not here."""
        if self._session is None and not self._missing:
            made = SyncSession(self._client, self._workdir, seed=f"{self._facts.seed}/{self.spec}")
            try:
                self._session = made.__enter__()
            except (ClientUnavailable, LinkUnavailable, CaptureUnavailable) as error:
                self._missing = str(error)
        if self._session is None:
            pytest.skip(f"client {self.spec}: {self._missing}")
        return self._session

    def examine(self) -> dict[str, Verdict]:
        """The verdicts, measured once."""
        session = self.session
        if self._verdicts is None:
            self._verdicts = session.examine()
        return self._verdicts

    def close(self) -> None:
        """End everything, and keep what is asked for."""
        if self._session is None:
            return
        session, self._session = self._session, None
        session.__exit__(None, None, None)
        folder = Path(self._facts.results) / f"sync-{slug(self.spec)}-{self.agent.name}"
        if session.captures:
            self._store(session, folder)
        # pytest keeps temporary folders of some runs; what was sent, also by other programs, is not to stay there.
        shutil.rmtree(session.workdir / "captures", ignore_errors=True)

    def _store(self, session: SyncSession, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "session.json").write_text(json.dumps(session.record(), indent=1) + "\n", "utf-8")
        rows = [asdict(each) for each in session.observations]
        (folder / "observations.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        for number, metrics in enumerate(session.metrics):
            (folder / f"capture-{number}.json").write_text(json.dumps(metrics) + "\n", "utf-8")
        for capture in session.captures if self._keep_captures else ():
            shutil.move(capture.path, folder / capture.path.name)


def must_have_synced(spec: str, session: SyncSession) -> None:
    """Fail the test of a client that never brought a change to its server: it does not work, so nothing is unknown."""
    if session.never_synced:
        pytest.fail(f"client {spec} never synced: {session.never_synced}", pytrace=False)


@dataclass(frozen=True, slots=True)
class SyncItem:
    """A client in one test item.

    Attributes:
        lab: the client, shared with the other tests of the module.
        nodeid, name, test, params: pytest's names for the item.
        unmet: takes the lines of gates that are to fail the item, whatever becomes of its results.
        properties: takes what reports for machines are to say of the item (``user_properties``).
    """

    lab: SyncLab
    nodeid: str
    name: str
    test: str
    params: Mapping[str, Any]
    unmet: list[str]
    properties: list[tuple[str, object]]

    @property
    def spec(self) -> str:
        """As ``--client`` has it."""
        return self.lab.spec

    @property
    def facts(self) -> ClientFacts:
        """What is known of the client without running it."""
        return self.lab.session.client.facts

    def examine(self) -> dict[str, Verdict]:
        """A verdict for each capability (``detect.CAPABILITIES``)."""
        found: dict[str, Verdict] = self._or_skip(self.lab.examine)
        return found

    def measure(self, steps: Sequence[Step]) -> list[Observation]:
        """Do the steps one after another; what each of them showed. Inconclusive where one of them is not valid."""
        found: list[Observation] = self._or_skip(lambda: self.lab.session.measure(steps))
        bad = [f"{each.kind}: {reason}" for each in found for reason in each.reasons]
        changed = [each for each in found if each.kind != "idle"]
        sent = sum(each.up_bytes + each.down_bytes for each in changed)
        if bad := [*bad, *nameless_doubt(sum(each.nameless_bytes for each in changed), sent)]:
            pytest.skip(f"inconclusive: {'; '.join(dict.fromkeys(bad))}")
        return found

    def _or_skip(self, work: Any) -> Any:
        session = self.lab.session
        try:
            done = work()
        except (ClientUnavailable, CaptureUnavailable) as error:
            must_have_synced(self.spec, session)
            pytest.skip(f"client {self.spec}: {error}")
        except ClientError as error:
            if session.captures:
                raise
            raise ClientError(f"client {self.spec} did not start: {error}") from error
        must_have_synced(self.spec, session)
        return done

    def conclude(
        self, metrics: Mapping[str, float | None], rounds_s: Sequence[float], *, stats_of: str,
        columns: Sequence[str] = (), label: str = "", params: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None, published: Mapping[str, Any] | None = None,
        doubts: Sequence[str] = (), notes: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        """Make one entry and judge it; see ``Experiment.conclude``.

        Args:
            metrics: values by name, which expectations and gates see; None is "not known".
            rounds_s: durations that pytest-benchmark compares, at least one.
            stats_of: what they are.
            columns: names of metrics or facts for the table at the end of the run.
            label: takes the place of the item's own parameters in the entry's name, where a test makes several.
            params: parameters of the entry, besides the item's.
            facts: what else the entry holds; they hide metrics of the same name from readers, not from expectations.
            published: figures to stand beside the measured ones, with their ``source``.
            doubts: why the numbers may be wrong.
            notes: what is to be read beside them.
        """
        session = self.lab.session
        bracket = label or self.name.partition("[")[2].removesuffix("]")
        test = self.nodeid.partition("[")[0]
        about = {
            "nodeid": self.nodeid, "fullname": f"{test}[{bracket}]", "name": f"{self.test}[{bracket}]",
            "test": self.test, "provider": self.spec, "profile": None, "params": {**self.params, **(params or {})},
            "metrics": dict(metrics), "rounds_s": list(rounds_s), "stats_of": stats_of, "columns": list(columns),
            "facts": {"setting": session.record()}, "shown": dict(facts or {}), "published": dict(published or {}),
            "doubts": list(doubts), "notes": [*session.notes(), *notes],
            "versions": dict(session.versions), "expect": [], "ops": 0, "ops_files": [], "loop": None,
        }  # fmt: skip
        made = result_of(self.lab.agent.ask("alone", json.loads(json.dumps(about))))
        self.unmet.extend(f"{label}: {line}" if label else line for line in failing_gates(made.judgements))
        self.properties.extend(properties(made.info, made.judgements, label))
        return made


def item_of(item: pytest.Item, lab: SyncLab) -> SyncItem:
    """A client in one test item."""
    callspec = getattr(item, "callspec", None)
    params = {key: value for key, value in callspec.params.items() if key != "sync_lab"} if callspec else {}
    test = getattr(item, "originalname", item.name)
    return SyncItem(lab, item.nodeid, item.name, test, params, unmet_gates(item), item.user_properties)
