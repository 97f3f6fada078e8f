"""The ``lab`` fixture: a sync client in its lab, as one test sees it.

It decides which lab a test has and for how long, skips or fails a test whose client is not available or does not work,
stores its results, and makes its entries. One agent runs such a test while the others wait, so nothing here depends on
the number of agents.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts, slug
from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import ClientFacts, ClientUnavailable, SyncClient
from pytest_cloudbench.lab.detect import Observation, Step, Verdict
from pytest_cloudbench.lab.sync import activity
from pytest_cloudbench.lab.sync.activity import Act, Activity, Window
from pytest_cloudbench.lab.sync.changes import Workload, move_in, write
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.overheard import Overheard, overhear
from pytest_cloudbench.lab.sync.propagation import Propagation, propagate
from pytest_cloudbench.lab.sync.session import SyncSession
from pytest_cloudbench.lab.sync.transfers import PlannedInterruption, Transfer, Transfers
from pytest_cloudbench.load.experiment import Result, parse_result
from pytest_cloudbench.load.gate.settings import marked_margins
from pytest_cloudbench.load.gate.verdicts import entry_properties, failing_gates, unmet_gates
from pytest_cloudbench.load.item import declared_suite, plain_params, stored_name
from pytest_cloudbench.load.messages import Conclusion, Subject, plain_numbers
from pytest_cloudbench.load.request import EntryOptions
from pytest_cloudbench.model import ClientError, Content, UsageError
from pytest_cloudbench.net.capture import CaptureUnavailable
from pytest_cloudbench.net.link import LinkUnavailable, Way
from pytest_cloudbench.net.traffic.owners import nameless_doubt
from pytest_cloudbench.results.entry_names import Labels, entry_names
from pytest_cloudbench.results.places import make_results_folder
from pytest_cloudbench.support import extras

_NOT_HERE = (ClientUnavailable, LinkUnavailable, CaptureUnavailable)


class _LabBench:
    """A lab, and the session, activities and transfers in it, which are made when a test first needs them."""

    def __init__(self, spec: str, lab: Lab) -> None:
        self.spec, self.lab = spec, lab
        self.session: SyncSession | None = None
        self.verdicts: dict[str, Verdict] | None = None
        self.files = self.propagations = 0
        self.is_closed = False
        self._missing: Exception | None = None
        self._kept_captures = self._kept_observations = 0

    def open(self) -> SyncSession:
        """Open the session and its lab. If something is missing, every call raises the error of the first attempt."""
        if self._missing is not None:
            raise self._missing
        if self.session is None:
            try:
                if missing := extras.missing_extra("capture"):
                    raise CaptureUnavailable(missing)
                self.lab.__enter__()
            except _NOT_HERE as error:
                self._missing = error
                raise
            self.session = SyncSession(self.lab)
            self.activity, self.transfers = Activity(self.session), Transfers(self.lab)
        return self.session

    def keep(self, folder: Path | None, *, captures: bool) -> None:
        """Store what was measured since the last call. Packets hold user content: they are stored only on request."""
        new_captures, self._kept_captures = self.lab.captures[self._kept_captures :], len(self.lab.captures)
        if folder is not None and new_captures and self.session is not None:
            make_results_folder(folder)
            _write(folder / "lab.json", self.lab.record())
            rows = self.session.observations[self._kept_observations :]
            self._kept_observations += len(rows)
            if rows:
                _write(folder / "observations.json", [asdict(row) for row in rows])
            for capture in new_captures:
                if (metrics := self.lab.metrics.get(capture.path.name)) is not None:
                    _write(folder / f"capture-{capture.path.stem}.json", metrics)
                if captures:
                    shutil.move(capture.path, folder / capture.path.name)
        for capture in new_captures:
            capture.path.unlink(missing_ok=True)

    def close(self) -> None:
        """End everything, and remove the folder.

        The traffic of other programs must not stay among pytest's temporary files.
        """
        if not self.is_closed:
            self.is_closed = True
            self.lab.__exit__(None, None, None)
            shutil.rmtree(self.lab.workdir, ignore_errors=True)


_SHARED = pytest.StashKey[_LabBench]()
"""The bench that the tests of a file share."""
_MADE = pytest.StashKey[Counter[str]]()
"""The number of labs that a test file has had, by owner: each lab has contents of its own."""


class LabItem:
    """A sync client, its network and captures of it, in one test.

    Tests of one file share a client, which starts when the first of them needs it. ``rebuild`` gives a test one of its
    own. If something is not installed or not available, the test is skipped, and the reason says how to get it. If the
    client never brought a change to its server, the test fails.

    Args:
        item: the test.
        spec: the client, as given to ``--client``.
        agent: this process's place in the fleet.
        run: the facts of the whole run.
        new_folder: makes an empty folder on a file system that supports renaming.

    Raises UsageError for an unknown client, and for a run in scaled time: a real client runs in real time.
    """

    def __init__(
        self, item: pytest.Item, spec: str, agent: Agent, run: RunFacts, new_folder: Callable[[], Path]
    ) -> None:  # fmt: skip
        if run.time_scale != 1.0:
            raise UsageError("--time-scale: a sync client runs in real time; leave the option out")
        clients.make_client(spec)
        self.spec, self.nodeid = spec, item.nodeid
        self._item, self._agent, self._run, self._new_folder = item, agent, run, new_folder
        self._own_bench: _LabBench | None = None
        self._used_benches: list[_LabBench] = []
        self._added_options: dict[str, str] = {}
        self._labels, self._entries = Labels(), 0

    # --- the lab ---

    def rebuild(
        self, up: Way | None = None, down: Way | None = None, *, stream_s: float | None = 0.3,
        interruptible: bool = False, timeout_s: float = 120.0, options: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Give this test its own client and network instead of the shared ones. They end with the test.

        ``options`` are used for those of the client's options that the user did not set. The entries' notes name those
        that were used. For the other arguments see ``Lab``.
        """
        set_by_user = {pair.partition("=")[0] for pair in self.spec.partition("?")[2].split("&")}
        self._added_options = {name: value for name, value in (options or {}).items() if name not in set_by_user}
        client = clients.make_client(self.spec, **self._added_options)
        for bench in (self._own_bench, self._test_file.stash.get(_SHARED, None)):
            self._end_bench(bench)  # one client at a time, since two would disturb each other
        self._own_bench = self._make_bench(
            client, self.nodeid, up=up, down=down, stream_s=stream_s, interruptible=interruptible, timeout_s=timeout_s
        )

    @property
    def facts(self) -> ClientFacts:
        """The facts about the client that are known without running it."""
        return self._current_bench.lab.client.facts

    @property
    def client(self) -> SyncClient:
        """The client, prepared, and started by the first measurement."""
        return self._open_bench().lab.client

    @property
    def workdir(self) -> Path:
        """A folder on the same file system as the client's folder, removed with the lab."""
        return self._current_bench.lab.workdir

    @property
    def setting(self) -> dict[str, Any]:
        """The versions, link and captures used so far, as plain data. It is part of every entry."""
        return self._open_bench().lab.record()

    def doubts(self) -> list[str]:
        """Return why times may be wrong although each capture is complete: the link differs from the requested one."""
        return self._open_bench().lab.doubts()

    # --- measuring ---

    def examine(self) -> dict[str, Verdict]:
        """Return a verdict for each of ``detect.CAPABILITIES``, measured once for all tests that share the client."""
        bench = self._open_bench()
        if bench.verdicts is None:
            bench.verdicts = bench.open().examine()
        self._must_have_synced()
        return bench.verdicts

    def measure(self, steps: Sequence[Step]) -> list[Observation]:
        """Do the steps in order, and return their observations. Inconclusive if one of them is not valid."""
        observations = self._open_bench().open().measure(steps)
        self._must_have_synced()
        reasons = [f"{observation.kind}: {reason}" for observation in observations for reason in observation.reasons]
        changed = [observation for observation in observations if observation.kind != "idle"]
        sent = sum(observation.up_bytes + observation.down_bytes for observation in changed)
        _skip_if_doubtful([*reasons, *nameless_doubt(sum(observation.nameless_bytes for observation in changed), sent)])
        return observations

    def watch(self, acts: Sequence[Act]) -> list[Window]:
        """Perform the acts, and return their windows in order. The test is inconclusive if a number may be wrong."""
        bench = self._open_bench()
        login = bench.activity.login
        windows = bench.activity.watch(acts)
        self._must_have_synced()
        logins = [window for window in (bench.activity.login,) if window is not None and window is not login]
        _skip_if_doubtful([f"{window.label}: {reason}" for window in (*logins, *windows) for reason in window.reasons])
        if unsized := [window.label for window in (*logins, *windows) if window.wire_bytes is None]:
            _skip_if_doubtful([f"{', '.join(unsized)}: the capture does not have sizes as they are on the wire"])
        return windows

    def overhear(self, acts: Sequence[Act]) -> Overheard:
        """Perform the acts, and return what passed meanwhile as an eavesdropper sees it.

        The client's start is included if it was not running before.
        """
        bench = self._open_bench()
        overheard = overhear(bench.open(), acts)
        self._must_have_synced()
        return overheard

    def login(self) -> Window | None:
        """Return the window of the start of client and server.

        None if the client was running, or another test started it.
        """
        if self._open_bench().lab.is_started:
            return None
        self.watch([])
        return self._open_bench().activity.login

    def idle(self, duration_s: float) -> Window:
        """Return the window of a client that is left alone for this time."""
        return self.watch([self.rest(duration_s)])[0]

    def start_and_idle(self, duration_s: float) -> tuple[Window, Window] | None:
        """Return the windows of the start of client and server, and of the idle time after it, from one capture.

        None as for ``login``.
        """
        bench = self._open_bench()
        if bench.lab.is_started:
            return None
        (idle,) = self.watch([self.rest(duration_s)])
        assert bench.activity.login is not None
        return bench.activity.login, idle

    def rest(self, duration_s: float) -> Act:
        """Return an act that does nothing for this long, for use among other acts."""
        return activity.rest(self.client, duration_s)

    def new_file(self, name: str, content: Content, *, label: str = "file") -> tuple[Path, Act]:
        """Return a new path in the client's folder, and the act that makes the file appear there at once."""
        bench = self._open_bench()
        bench.files += 1
        prepared, path = bench.lab.workdir / f"{name}-{bench.files}", bench.lab.client.folder / f"{name}-{bench.files}"
        write(prepared, content)
        return path, Act(label, lambda: move_in(prepared, path))

    def transfer(
        self, workload: Workload, times: int = 1, *, interruption: PlannedInterruption | None = None
    ) -> list[Transfer]:
        """Transfer a set of new files ``times`` times, see ``Transfers.run``. A failed transfer is a result, too."""
        return self._open_bench().transfers.run(workload, times, interruption=interruption)

    def propagate(self, workload: Workload, *, phase_s: float = 0.0) -> Propagation:
        """Measure the time until the other side has a set of new files, see ``propagation.propagate``.

        The set appears after a random time of at most ``phase_s``. Otherwise each set would appear at the same point of
        the client's period.
        """
        bench = self._open_bench()
        bench.propagations += 1
        name, seed = f"arriving{bench.propagations:04d}", f"{bench.lab.seed}/arriving/{bench.propagations}"
        bench.lab.start()
        bench.lab.client.idle(Random(seed).uniform(0, phase_s))
        return propagate(bench.lab, workload, name=name, seed=seed)

    # --- results ---

    def conclude(
        self, metrics: Mapping[str, float | None], rounds_s: Sequence[float], *, stats_of: str,
        columns: Sequence[str] = (), label: str = "", params: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None, published: Mapping[str, Any] | None = None,
        doubts: Sequence[str] = (), notes: Sequence[str] = (), versions: Mapping[str, str] | None = None,
    ) -> Result:  # fmt: skip
        """Make one entry and judge it, see ``Experiment.conclude``.

        Args:
            metrics: values by name, for expectations and gates. None is "not known".
            rounds_s: durations that pytest-benchmark compares, at least one.
            stats_of: the thing that the rounds are durations of.
            columns: names of metrics, or of what is in ``extra``, for the table at the end of the run. If there are
                none, it shows all metrics.
            label: names the entry if a test makes several: the full name ends in ``#label``, that of the second one
                with this label in ``#label-2``.
            params: parameters of the entry, instead of the test's.
            extra: more plain data for the entry. Readers see it instead of a metric of the same name. Expectations see
                the metric.
            published: figures to show beside the measured ones, with their ``source``.
            doubts: reasons why the numbers may be wrong.
            notes: facts that readers should know about the numbers.
            versions: of programs other than the client's.
        """
        self._entries += 1
        label = self._labels.new(label)
        fullname, _ = entry_names(stored_name(self._item), self._item.name, label)
        test = getattr(self._item, "originalname", self._item.name)
        test_params = plain_params(self._item, "lab", "_client")
        ids = self._item.name.partition("[")[2].removesuffix("]")
        lab = self._current_bench.lab if self._current_bench.session is not None else None
        added = [f"{name}={value} was added to the client's options" for name, value in self._added_options.items()]
        subject = Subject(
            f"{self.nodeid}#lab{self._entries}", self.nodeid, fullname,
            f"{test}[{'-'.join(filter(None, (label, ids)))}]", test,
            test_params if params is None else params, "", self.spec, None, is_kept=False,
            versions={**(lab.versions if lab else {}), **(versions or {})}, suite=declared_suite(self._item),
        )  # fmt: skip
        entry = EntryOptions(
            label, extra={"setting": lab.record()} if lab else {}, published=published or {},
            notes=tuple(dict.fromkeys([*(lab.notes() if lab else ()), *added, *notes])),
            gate=marked_margins(self._item),
        )  # fmt: skip
        conclusion = Conclusion(
            subject, entry, plain_numbers(metrics), tuple(rounds_s), stats_of, tuple(columns),
            tuple(dict.fromkeys(doubts)), shown=extra or {},
        )  # fmt: skip
        result = parse_result(self._agent.ask("alone", conclusion))
        unmet_gates(self._item).extend(
            f"{label}: {line}" if label else line for line in failing_gates(result.judgements)
        )
        self._item.user_properties.extend(entry_properties(result.info, result.judgements, label))
        return result

    def settle(self, results: Sequence[Result], *, must_sync: bool = True) -> None:
        """Assert what is expected of all entries of the test. Call it last.

        Raises like ``Result.check``. A test whose numbers may be wrong is skipped as inconclusive and not passed. If
        the client never brought a change to its server, the test fails, unless that is a finding (``must_sync``).
        """
        if must_sync:
            self._must_have_synced()
        for result in results:
            result.check()
        _skip_if_doubtful([doubt for result in results for doubt in result.doubts])

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Wrap the test: skip it if something is not available, but fail it if the client never worked."""
        try:
            yield
        except _NOT_HERE as error:
            self._must_have_synced()
            _skip(f"client {self.spec}: {error}")
        except ClientError as error:
            if any(bench.lab.captures for bench in self._used_benches):
                raise
            raise ClientError(f"client {self.spec} did not start: {error}") from error

    def close(self) -> None:
        """Store what this test has measured, and close its own lab if it has one. Called by the fixture."""
        try:
            for bench in self._used_benches:
                self._keep_results(bench)
        finally:
            self._end_bench(self._own_bench)

    # --- inside ---

    @property
    def _test_file(self) -> pytest.File:
        return next(node for node in self._item.listchain() if isinstance(node, pytest.File))

    @property
    def _current_bench(self) -> _LabBench:
        """This test's own bench, or the one shared by the file's tests of the same client."""
        if self._own_bench is not None:
            return self._own_bench
        shared = self._test_file.stash.get(_SHARED, None)
        if shared is None or shared.is_closed or shared.spec != self.spec:
            self._end_bench(shared)
            shared = self._make_bench(clients.make_client(self.spec), f"{self._test_file.nodeid}/{self.spec}")
            self._test_file.stash[_SHARED] = shared
            self._test_file.addfinalizer(shared.close)
        return shared

    def _make_bench(self, client: SyncClient, owner: str, **options: Any) -> _LabBench:
        counts = self._test_file.stash.setdefault(_MADE, Counter())
        counts[owner] += 1
        seed = f"{self._run.seed}/{owner}/{counts[owner]}"
        return _LabBench(self.spec, Lab(client, self._new_folder(), seed=seed, **options))

    def _open_bench(self) -> _LabBench:
        bench = self._current_bench
        bench.open()
        if bench not in self._used_benches:
            self._used_benches.append(bench)
        return bench

    def _keep_results(self, bench: _LabBench) -> None:
        number = self._used_benches.index(bench) + 1
        suffix = f"-again{self._agent.again}" if self._agent.again else ""
        folder = Path(self._run.results) / (slug(self.nodeid) + (f"-{number}" if number > 1 else "") + suffix)
        # The results of a run over ssh are on another host, where these files cannot be stored.
        keeps_captures = bool(self._item.config.option.cloudbench_keep_captures)
        bench.keep(folder if self._agent.same_clock else None, captures=keeps_captures)

    def _end_bench(self, bench: _LabBench | None) -> None:
        if bench is not None:
            try:
                if bench in self._used_benches:
                    self._keep_results(bench)
            finally:
                bench.close()

    def _must_have_synced(self) -> None:
        """Fail the test if the client never brought a change to its server: that is a failure, not "unknown"."""
        for why in (bench.lab.never_synced for bench in self._used_benches):
            if why:
                pytest.fail(f"client {self.spec} never synced: {why}", pytrace=False)


def _skip_if_doubtful(doubts: Sequence[str]) -> None:
    if doubts:
        _skip(f"inconclusive: {'; '.join(dict.fromkeys(doubts))}")


def _skip(why: str) -> NoReturn:
    """Skip the test. The summary names the test's location, not one in this module."""
    raise pytest.skip.Exception(why, _use_item_location=True)


def _write(path: Path, plain: Any) -> None:
    path.write_text(json.dumps(plain, indent=1) + "\n", "utf-8")
