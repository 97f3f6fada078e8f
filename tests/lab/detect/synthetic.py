"""Observations of synthetic clients with known capabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_cloudbench.lab.detect import KINDS, Observation, Step, first_steps, more_steps

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class FakeClient:
    """A client with given capabilities. ``observe`` computes the exact traffic of a step."""

    chunk_bytes: int = 0
    bundles: bool = False
    per_file_connection: bool = False
    dedup: str = "no"  # no, file, block (fixed), content (blocks cut by content)
    forgets_deleted: bool = False
    delta: str = "no"  # no, fixed, rolling
    compresses: str = "no"  # no, always, smart, name
    overhead: float = 1.002
    block_bytes: int = MIB
    delta_block_bytes: int = 4 * KIB
    idle_bytes_per_s: float = 0.0
    inflation: float = 1.0

    def observe(self, step: Step, base_bytes: int) -> Observation:
        """Return the observation of one step."""
        duration_s = step.duration_s or 2.0
        size = {"idle": 0, "delete": 0}.get(step.kind, self._size(step, base_bytes))
        zlib = round(size * 0.38) if "text" in step.kind or step.kind == "fake_jpeg" else None
        content_bytes = self._count_sent_bytes(step, size, base_bytes)
        up = round(content_bytes * self.overhead * self.inflation + 500 + self.idle_bytes_per_s * duration_s)
        observation = Observation(
            step.kind, size, size, step.files, zlib_bytes=zlib, up_bytes=up, down_bytes=500, duration_s=duration_s
        )
        if step.kind == "idle":
            return replace(observation, up_bytes=round(self.idle_bytes_per_s * duration_s), down_bytes=0)
        return self._with_waits(observation, content_bytes)

    def _size(self, step: Step, base_bytes: int) -> int:
        if step.kind in ("copy", "restore"):
            return base_bytes
        edits = ("append", "insert", "change", "spliced", "twin_insert", "twin_change")
        return base_bytes + step.size_bytes if step.kind in edits else step.size_bytes

    def _count_sent_bytes(self, step: Step, size: int, base: int) -> float:
        kind, block, delta_block = step.kind, self.block_bytes, self.delta_block_bytes
        if kind in ("idle", "delete"):
            return 0
        if self.compresses != "no" and ("text" in kind or kind == "fake_jpeg"):
            raw_kinds = {
                "always": (), "smart": ("text_in_jpeg", "fake_jpeg"), "name": ("text_as_jpeg", "fake_jpeg"),
            }[self.compresses]  # fmt: skip
            return size * (1.0 if kind in raw_kinds else 0.4)
        if kind == "copy" and self.dedup != "no":
            return 0
        if kind == "restore" and self.dedup != "no":
            return size if self.forgets_deleted else 0
        edit = "insert" if kind == "spliced" else kind.removeprefix("twin_")
        by_block = {"append": block, "change": 2 * block, "insert": base / 2 + block}
        by_delta = {
            "append": delta_block,
            "change": 2 * delta_block,
            "insert": base / 2 if self.delta == "fixed" else delta_block,
        }
        cost = float(size)
        if self.dedup == "content":
            by_block["insert"] = 1.5 * block
        if edit in by_block and self.dedup in ("block", "content"):
            cost = min(cost, by_block[edit])
        if not kind.startswith("twin_") and edit in by_delta and self.delta != "no":
            cost = min(cost, by_delta[edit])
        return cost

    def _with_waits(self, observation: Observation, content_bytes: float) -> Observation:
        chunk = self.chunk_bytes or max(1, round(content_bytes))
        pieces = [chunk] * int(content_bytes // chunk) + (
            [round(content_bytes % chunk)] if content_bytes % chunk else []
        )
        exchanges, syns, down = len(pieces), 0, observation.down_bytes + 200 * len(pieces)
        if observation.kind in ("few", "many") and not self.bundles:
            pieces = [observation.size_bytes // observation.files] * observation.files
            exchanges, down = observation.files, 300 * observation.files
            syns = observation.files if self.per_file_connection else 0
        return replace(
            observation, chunks_bytes=tuple(pieces), exchanges=exchanges, turns=exchanges, answers=exchanges, syns=syns,
            down_bytes=down, bursts=exchanges,
        )  # fmt: skip

    def measure(self) -> list[Observation]:
        """Return all observations that a session would make of the client."""
        observations: list[Observation] = []
        base, steps, series = 0, first_steps(), 0
        while steps:
            series += 1
            assert series < 6, "no end of steps"
            for step in steps:
                base = step.size_bytes if step.kind == "new" else base
                observations.append(self.observe(step, base))
            steps = more_steps(observations)
        assert {observation.kind for observation in observations} <= set(KINDS)
        return observations
