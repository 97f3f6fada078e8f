"""Capture packets while a test of a BenchCloud file with ``[capture]`` runs, or note why nothing is captured.

This is the leader's capture around one experiment. ``pytest_cloudbench.net.capture`` captures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.load.experiment import Experiment
from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.plugin.configs.benchcloud import CaptureSettings

if TYPE_CHECKING:
    from pytest_cloudbench.net.capture import Capture


class ExperimentCapture:
    """A capture that the leading agent makes. All agents call both methods.

    ``fills``: the experiment uploads files before the operations that it measures.
    """

    def __init__(self, settings: CaptureSettings, experiment: Experiment, *, fills: bool) -> None:
        self._settings, self._experiment, self._fills = settings, experiment, fills
        self._capture: Capture | None = None

    def start(self) -> list[str]:
        """Start capturing. Return notes, the same on every agent, on changed settings or why nothing is captured."""
        notes: list[str] = self._experiment.agent.once("capture:start", self._start_on_leader)
        return notes

    def stop(self) -> str:
        """Stop capturing. Return one line about what was captured, empty if nothing was."""
        return str(self._experiment.agent.once("capture:stop", self._stop_on_leader))

    def _start_on_leader(self) -> list[str]:
        from pytest_cloudbench.net.capture import Capture

        settings, agent = self._settings, self._experiment.agent
        if not agent.same_clock:
            return ["[capture]: nothing is captured: the leading agent is on another host than the results"]
        name = Path(settings.file.replace("\\", "/")).stem or "capture"
        path = self._experiment.folder / f"{name}.pcapng"
        try:
            capture = Capture(settings.device, path, filter=settings.filter, snaplen=settings.snap_bytes)
            path.parent.mkdir(parents=True, exist_ok=True)
            with agent.sign_of_life():
                capture.__enter__()
        except (CloudbenchError, OSError) as error:
            return [f"[capture]: nothing is captured: {error}"]
        self._capture = capture
        notes = [f"capture.filename: {settings.file} becomes {path.name} beside this run's results"]
        if settings.promiscuous:
            notes.append("capture.promisc: is ignored: only packets of this machine are captured")
        if self._fills:
            notes.append("[capture]: the uploads that fill the folder are captured too")
        if self._experiment.provider.profile is not None and not settings.device.startswith("lo"):
            notes.append(f"capture.device: an emulated provider is on the loopback, not on {settings.device}")
        return notes

    def _stop_on_leader(self) -> str:
        if self._capture is None:
            return ""
        result = self._capture.stop()
        state = "complete" if result.is_valid else f"not to be measured from: {'; '.join(result.reasons)}"
        return f"captured {result.packets} packets on {result.interface} in {result.path.name}, {state}"
