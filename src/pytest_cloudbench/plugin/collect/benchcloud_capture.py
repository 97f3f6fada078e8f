"""Capture packets while a test of a BenchCloud file with ``[capture]`` runs, or note why nothing is captured.

This is the leader's capture around one experiment. ``pytest_cloudbench.net.capture`` captures.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.load.experiment import Experiment
from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.net.quiet import QUIET_BYTES, QuietWatch
from pytest_cloudbench.plugin.configs.benchcloud import CaptureSettings
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.net.capture import Capture

_QUIET_S, _POLL_S = 5.0, 0.2
_UNSEEN_MOST_S, _BUSY_MOST_S = 60.0, 600.0
"""How long files stay at most: if no traffic stands out, and if the traffic does not end."""


class ExperimentCapture:
    """A capture that the leading agent makes. All agents call all methods.

    Args:
        fills: whether the experiment uploads files before the operations that it measures.

    Attributes:
        keeps_files: whether files must stay until ``wait_quiet`` returns: they are in a folder that may be a sync
            client's, which sends only what is still there when it looks.
    """

    def __init__(self, settings: CaptureSettings, experiment: Experiment, *, fills: bool) -> None:
        self._settings, self._experiment, self._fills = settings, experiment, fills
        self._capture: Capture | None = None
        self._start_bytes = 0
        self.keeps_files = experiment.provider.spec.startswith("folder:") and not fills

    def start(self) -> list[str]:
        """Start capturing. Return notes, the same on every agent, on changed settings or why nothing is captured."""
        is_started, notes = self._experiment.agent.once("capture:start", self._start_on_leader)
        if not self.keeps_files:
            return [*notes]
        self.keeps_files = is_started
        if not is_started:
            return [*notes, "[capture]: the files are removed at once: a sync client may not have sent them by then"]
        return [
            *notes,
            "[capture]: the files stay until the capture is quiet, which is no proof that a sync client sent them",
        ]

    def wait_quiet(self) -> str:
        """Wait until a sync client's traffic has ended, or for some minutes. Return how it ended, in one line."""
        if not self.keeps_files:
            return ""
        return str(self._experiment.agent.once("capture:quiet", self._wait_on_leader))

    def stop(self) -> str:
        """Stop capturing. Return one line about what was captured, empty if nothing was."""
        return str(self._experiment.agent.once("capture:stop", self._stop_on_leader))

    def _start_on_leader(self) -> tuple[bool, list[str]]:
        """Start the capture. Returns whether it runs, and notes for the entry."""
        from pytest_cloudbench.net.capture import Capture

        settings, agent = self._settings, self._experiment.agent
        if not agent.same_clock:
            return False, ["[capture]: nothing is captured: the leading agent is on another host than the results"]
        name = Path(settings.file.replace("\\", "/")).stem or "capture"
        path = self._experiment.folder / f"{name}.pcapng"
        try:
            capture = Capture(settings.device, path, filter=settings.filter, snaplen=settings.snap_bytes)
            path.parent.mkdir(parents=True, exist_ok=True)
            with agent.sign_of_life():
                capture.__enter__()
        except (CloudbenchError, OSError) as error:
            return False, [f"[capture]: nothing is captured: {error}"]
        self._capture, self._start_bytes = capture, path.stat().st_size
        notes = [f"capture.filename: {settings.file} becomes {path.name} beside this run's results"]
        if settings.promiscuous:
            notes.append("capture.promisc: is ignored: only packets of this machine are captured")
        if self._fills:
            notes.append("[capture]: the uploads that fill the folder are captured too")
        if self._experiment.provider.profile is not None and not settings.device.startswith("lo"):
            notes.append(f"capture.device: an emulated provider is on the loopback, not on {settings.device}")
        return True, notes

    def _wait_on_leader(self) -> str:
        if self._capture is None:
            return "the agent that captured is gone, so a sync client may not have sent all files"
        agent, path, start_s = self._experiment.agent, self._capture.path, time.monotonic()
        watch, is_quiet = QuietWatch(_QUIET_S, QUIET_BYTES, self._start_bytes, start_s), False

        def is_over() -> bool:
            nonlocal is_quiet
            now_s = time.monotonic()
            is_quiet = watch.is_quiet(path.stat().st_size, now_s)
            return is_quiet or (not watch.was_busy and now_s - start_s > _UNSEEN_MOST_S)

        with agent.sign_of_life():
            wait_for(is_over, _BUSY_MOST_S, poll_s=_POLL_S, stop=agent.stop)
        if is_quiet:
            return "the files stayed until the capture was quiet"
        if watch.was_busy:
            return f"the capture was still busy after {_BUSY_MOST_S:g} s, so a sync client may not have sent all files"
        return f"no traffic stood out within {_UNSEEN_MOST_S:g} s, so a sync client may not have sent the files"

    def _stop_on_leader(self) -> str:
        if self._capture is None:
            return ""
        result = self._capture.stop()
        state = "complete" if result.is_valid else f"not to be measured from: {'; '.join(result.reasons)}"
        return f"captured {format_count(result.packets, 'packet')} on {result.interface} in {result.path.name}, {state}"
