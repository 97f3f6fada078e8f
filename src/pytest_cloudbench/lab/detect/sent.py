"""The bytes that a client did not send: deduplication, delta encoding, compression (IMC 2013, sections 4.3 to 4.5).

These verdicts rest on the bytes that went up for an edit.

All ratios are of bytes sent, less what the idle client sends, to the size of the file. Each is divided by the same
ratio for a new file of random bytes, so that encryption, headers and redundancy cancel out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_cloudbench.lab.detect.values import LEAST_SENT, Observation, Verdict, format_size, unknown_verdict

CHEAP, _WHOLE = 0.25, 0.75
_SANE_HIGH = 6.0
_SAVED = 0.5
"""The share of a cheap file that, sent with the change after it, shows that it was only sent later."""
_CHEAP_KINDS = frozenset({"copy", "restore", "append", "insert", "change"})
"""The kinds that deduplication or delta encoding makes cheap."""
_COMPRESSED, _NOT_COMPRESSED, _MORE = 0.85, 0.95, 1.2
_LEAST_PACKED = 0.5
"""The least share of zlib's size to which anything packs random words: their entropy is 0.55 of it."""
_DELTA, _EXPLAINED = 0.25, 0.5
"""Bytes of an edit over those of the same edit under another name. Up to the first, there is delta encoding. From the
second on, deduplication alone explains what is saved."""
_FINE_BYTES = 48 << 10
CUT_BY_CONTENT, _AT_FIXED_PLACES = 0.45, 0.495
"""With fixed blocks, at least half of a file is sent again when its middle has moved."""
_TALK_BYTES, _LAST_TOO, _SPREAD = 32 << 10, 0.4, 1.05
"""The uncertainty of a block's size, taken from the cost of an edit: protocol bytes that are counted or missing, the
share that remains if the last block is sent, too, and the variation of a new file's cost, by which all are divided."""
_LEAST_EDITS, _ALIKE = 6, 1.1
"""The edits needed to know the mean size of content-defined blocks, and the largest ratio between fixed ones."""
_POLICY = {
    (True, True): "always: whatever the name or the content",
    (False, True): "smart: by content, files that begin like a JPEG image are not compressed",
    (True, False): "by name: files called .jpg are not compressed",
    (False, False): "smart: by name or content",
}  # (compressed in spite of a JPEG's head, in spite of a JPEG's name)


@dataclass(slots=True)
class EditCosts:
    """Costs of edits, in comparable form.

    Attributes:
        idle_bytes_per_s: what the client sends while nothing happens.
        groups: for each new file that was the base of edits, kind to ratio, in order of time.
        costs_bytes: the same in bytes.
        sizes_bytes: size of each base.
        ratios: kind to the ratios of all observations of it.
        shares: kind to bytes sent over bytes in the file, not divided by anything.
        spliced_bytes: bytes of the file sent for each edit at random places, less what a copy costs.
        doubt: the reason why no ratio can be trusted, or empty.
    """

    idle_bytes_per_s: float
    groups: list[dict[str, float]] = field(default_factory=list)
    costs_bytes: list[dict[str, float]] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    shares: dict[str, list[float]] = field(default_factory=dict)
    spliced_bytes: list[float] = field(default_factory=list)
    doubt: str = ""

    @classmethod
    def measure(cls, observations: Sequence[Observation]) -> EditCosts:
        """Compute the costs of all valid observations."""
        idle = [
            observation
            for observation in observations
            if observation.kind == "idle" and observation.is_valid and observation.duration_s > 0
        ]
        rates = [observation.up_bytes / observation.duration_s for observation in idle]
        rate = max(rates, default=0.0)
        costs = cls(rate)
        if not idle:
            costs.doubt = "the idle client was not measured"
        unit = 0.0
        cheap: Observation | None = None
        for observation in observations:
            if observation.kind == "new":
                costs.groups.append({})
                costs.costs_bytes.append({})
                costs.sizes_bytes.append(observation.size_bytes)
            if not observation.is_valid or not observation.size_bytes:
                continue
            cost = max(0.0, observation.up_bytes - rate * observation.duration_s)
            if observation.kind == "new":
                unit = cost / observation.size_bytes
                if not LEAST_SENT <= unit <= _SANE_HIGH:
                    size = format_size(observation.size_bytes)
                    costs.doubt = (
                        f"{format_size(cost)} were sent for {size} of new random bytes, so this is not all of the "
                        "client's traffic, or not only this client's"
                    )
            unsure_bytes = (rate - min(rates, default=rate)) * observation.duration_s
            if unit:
                ratio = cost / observation.size_bytes / unit
                costs.doubt = costs.doubt or _doubt_cheapness(observation, cost, unit, unsure_bytes)
                costs.doubt = costs.doubt or _doubt_lateness(cheap, observation, cost, unit)
                is_cheap = observation.kind in _CHEAP_KINDS and cost <= CHEAP * unit * observation.size_bytes
                cheap = observation if is_cheap else None
                costs.ratios.setdefault(observation.kind, []).append(ratio)
                costs.shares.setdefault(observation.kind, []).append(cost / observation.size_bytes)
                if observation.kind == "spliced" and costs.groups and "copy" in costs.groups[-1]:
                    costs.spliced_bytes.append((ratio - costs.groups[-1]["copy"]) * observation.size_bytes)
                if costs.groups:
                    costs.groups[-1][observation.kind], costs.costs_bytes[-1][observation.kind] = ratio, cost
        if not costs.doubt and "new" not in costs.ratios:
            costs.doubt = "no new file of random bytes was measured"
        return costs

    def last_twins(self, kind: str) -> tuple[float, float, float, float] | None:
        """Return the ratios of an edit and of its twin, then the bytes of both, for the last base that has both."""
        for ratios, costs in zip(self.groups[::-1], self.costs_bytes[::-1], strict=True):
            if kind in ratios and f"twin_{kind}" in ratios:
                twin = f"twin_{kind}"
                return ratios[kind], ratios[twin], costs[kind], costs[twin]
        return None

    def last_ratio(self, kind: str) -> float | None:
        """Return the ratio of the last valid observation of a kind."""
        ratios = self.ratios.get(kind)
        return ratios[-1] if ratios else None

    def last_cost_bytes(self, kind: str) -> float | None:
        """Return the bytes of the last valid observation of a kind."""
        return next((costs[kind] for costs in self.costs_bytes[::-1] if kind in costs), None)

    def evidence(self, *kinds: str) -> list[str]:
        """Return one sentence for each kind that was measured."""
        return [
            f"{kind}: {format_size(costs[kind])} sent, {ratio:.3g} of a new file's"
            for ratios, costs in zip(self.groups, self.costs_bytes, strict=True)
            for kind, ratio in ratios.items()
            if kind in kinds
        ]

    def numbers(self, *kinds: str) -> dict[str, float]:
        """Return the last ratio of each kind that was measured."""
        return {kind: round(ratios[-1], 6) for kind in kinds if (ratios := self.ratios.get(kind))}


def _doubt_cheapness(observation: Observation, cost_bytes: float, unit: float, unsure_bytes: float) -> str:
    """Return the reason why a cheap copy or edit says nothing, or an empty text.

    A client that retries may have sent the new file, by which all are divided, several times. One that is loud now and
    then may have sent for the copy what is taken for the noise of an idle client.
    """
    kind, cheap_bytes = observation.kind, CHEAP * unit * observation.size_bytes
    if kind not in _CHEAP_KINDS or cost_bytes > cheap_bytes:
        return ""
    if kind == "copy" and cost_bytes >= _WHOLE * observation.size_bytes:
        return f"{format_size(cost_bytes)} were sent for a copy, and {unit:.1f} times the file's size when it was new"
    if cost_bytes + unsure_bytes > cheap_bytes:
        return f"{kind}: the idle client sends now more, now less, by {format_size(unsure_bytes)} in this time"
    return ""


def _doubt_lateness(cheap: Observation | None, following: Observation, cost_bytes: float, unit: float) -> str:
    """Return the reason why a cheap copy or edit says nothing if what it saved was sent with the change after it.

    A client may be taken to be in sync before it has begun to send.
    """
    expected_bytes = unit * following.size_bytes
    if cheap is None or cost_bytes <= _MORE * expected_bytes:
        return ""
    more_bytes = cost_bytes - expected_bytes
    if more_bytes < _SAVED * unit * cheap.size_bytes:
        return ""
    return f"{cheap.kind}: it may have been sent only later, as {format_size(more_bytes)} more than the next file has"


def _confidence(ratio: float, bound: float) -> float:
    """Return 0 at the bound, and nearly 1 far from it."""
    low, high = sorted((max(ratio, 1e-9), bound))
    return round(1 - low / high, 4)


def deduplication(sent: EditCosts) -> Verdict:
    """Judge whether content that the server has is not sent again (IMC 2013, 4.3).

    The copy lies in a new folder under an unrelated name, so a client that only looks for a similar base file, as
    rsync's ``--fuzzy`` does, finds none.
    """
    name, kinds = "deduplication", ("copy", "restore", "twin_insert", "twin_change")
    if sent.doubt:
        return unknown_verdict(name, sent.doubt, wants=("idle", "new", "copy"))
    evidence, numbers, copies = sent.evidence(*kinds), sent.numbers(*kinds), sent.ratios.get("copy", [])
    if not copies:
        return unknown_verdict(name, "no copy of a file was measured", evidence, numbers, wants=("copy",))
    if all(ratio >= _WHOLE for ratio in copies):
        margin = _confidence(min(copies), CHEAP)
        return Verdict(name, "no", "a copy made at once is sent like a new file", margin, tuple(evidence), numbers)
    if any(ratio > CHEAP for ratio in copies):
        return unknown_verdict(name, "a copy is sent in part", evidence, numbers, wants=("new", "copy"))
    parts, wants = [], []
    edits = [sent.last_ratio(kind) for kind in ("append", "insert", "change")]
    twin, size = sent.last_ratio("twin_change"), format_size(max(sent.sizes_bytes))
    if edits and all(edit is not None and edit >= _WHOLE for edit in edits):
        parts.append(f"whole files, or blocks of {size} or more")
    elif twin is None:
        wants += ["twin_change"]
    elif twin >= _WHOLE:
        parts.append("whole files")
    else:
        blocks = find_blocks(sent)
        parts.append("blocks" if blocks is None else blocks.text)
        wants += _missing_edits(sent)
    restored = sent.last_ratio("restore")
    if restored is None:
        wants += ["delete", "restore"]
    elif restored <= CHEAP or restored >= _WHOLE:
        parts.append(f"{'also' if restored <= CHEAP else 'not'} after all copies were deleted")
    detail = "; ".join(parts) or "whether by file or by block is not known"
    return Verdict(name, "yes", detail, _confidence(max(copies), CHEAP), tuple(evidence), numbers, tuple(wants))


@dataclass(frozen=True, slots=True)
class Blocks:
    """The known properties of deduplicated blocks. Bytes are of the file, not of the wire.

    Attributes:
        is_cut_by_content, is_fixed: whether they are found again behind an insertion, or lie at fixed places. Neither
            if that is unclear.
        seen_bytes: for each block that an edit touched, an estimate of its size.
        costs_bytes: for each edit, its bytes less those of an unchanged copy: at least the block that it touched.
    """

    is_cut_by_content: bool
    is_fixed: bool
    seen_bytes: tuple[float, ...]
    costs_bytes: tuple[float, ...]

    @property
    def bounds_bytes(self) -> tuple[float, float] | None:
        """Bounds of their mean size, or None if too few were touched to tell.

        An edit at a random place hits a large block more often than a small one. Blocks that are cut by content vary as
        random numbers do: of six that are hit, one in 200 times all have more than twice the mean size.
        """
        costs = self.costs_bytes
        if not costs or not (self.is_fixed or (self.is_cut_by_content and len(costs) >= _LEAST_EDITS)):
            return None
        largest = min(costs) if self.is_fixed else max(costs)
        return _LAST_TOO * max(0.0, min(costs) - _TALK_BYTES), _SPREAD * largest + _TALK_BYTES

    @property
    def text(self) -> str:
        """A description of how they are cut, with the bounds of their size, as far as these are known."""
        name = "blocks cut by content" if self.is_cut_by_content else "blocks"
        if self.bounds_bytes is None:
            return name
        lower, upper = self.bounds_bytes
        average = " on average" if self.is_cut_by_content else ""
        return f"{name}, {f'{format_size(lower)} to' if lower else 'up to'} {format_size(upper)} each{average}"

    @property
    def size_bytes(self) -> float | None:
        """An estimate of their mean size, which may be off by half, or None if too few were touched to tell.

        An edit at a random place hits a large block more often than a small one. The harmonic mean corrects for that.
        """
        sizes_bytes = self.seen_bytes
        is_known = len(sizes_bytes) >= _LEAST_EDITS or (
            self.is_fixed and sizes_bytes and max(sizes_bytes) <= _ALIKE * min(sizes_bytes)
        )
        return statistics.harmonic_mean(sizes_bytes) if is_known else None

    @property
    def least_bytes(self) -> float:
        """The smallest block that an edit touched, or 0 if none is known."""
        return min(self.seen_bytes, default=0.0)


def find_blocks(sent: EditCosts) -> Blocks | None:
    """Return the blocks that deduplication knows, or None if it does not work by block, or if that is unknown.

    ``twin_change`` touches a block within the file and the last block, which ``append`` touched alone. ``twin_insert``
    and ``spliced`` touch one each, if blocks are cut by content.
    """
    copy, twin, moved = sent.last_ratio("copy"), sent.last_ratio("twin_change"), sent.last_ratio("twin_insert")
    if sent.doubt or copy is None or twin is None or copy > CHEAP or twin >= _WHOLE:
        return None
    is_cut = moved is not None and moved <= CUT_BY_CONTENT
    sizes_bytes, costs_bytes = [], []
    for ratios, size in zip(sent.groups, sent.sizes_bytes, strict=True):
        if "copy" in ratios and "twin_change" in ratios:
            end = max(ratios["copy"], min(ratios.get("append", 0.0), ratios["twin_change"]))
            sizes_bytes.append((ratios["twin_change"] - end) * size)
            costs_bytes.append((ratios["twin_change"] - ratios["copy"]) * size)
        if is_cut and "copy" in ratios and "twin_insert" in ratios:
            for sizes in (sizes_bytes, costs_bytes):
                sizes.append((ratios["twin_insert"] - ratios["copy"]) * size)
    # One block cut by content may be more than half of the file, and is sent for any edit inside it.
    is_fixed = moved is not None and moved >= _AT_FIXED_PLACES and twin <= CUT_BY_CONTENT
    for sizes in (sizes_bytes, costs_bytes):
        sizes.extend(sent.spliced_bytes if is_cut else ())
    return Blocks(
        is_cut, is_fixed, *(tuple(size for size in sizes if size > 0) for sizes in (sizes_bytes, costs_bytes))
    )


def _missing_edits(sent: EditCosts) -> list[str]:
    """Return the kind of edits that are missing if the size of blocks cut by content needs more than one or two edits.

    If edits of the file itself cost less than its blocks, they say nothing about blocks, and none are missing.
    """
    blocks, pair = find_blocks(sent), sent.last_twins("insert")
    is_few = blocks is not None and blocks.is_cut_by_content and blocks.size_bytes is None
    return ["spliced"] if is_few and pair is not None and pair[2] > _EXPLAINED * pair[3] else []


def is_edit_cheaper(sent: EditCosts) -> bool:
    """Return whether an edit costs clearly less than the file, so that parts of it were recognised."""
    kinds = ("append", "insert", "change")
    return any(ratio is not None and ratio < _WHOLE for ratio in map(sent.last_ratio, kinds))


def delta(sent: EditCosts) -> Verdict:
    """Judge whether only the changed part of a file is sent (IMC 2013, 4.4).

    Deduplicated blocks make edits cheap as well. So each edit is also made to a file of another name. Savings that show
    there, too, are not delta encoding.
    """
    name, kinds = "delta", ("append", "insert", "change", "twin_insert", "twin_change", "copy")
    if sent.doubt:
        return unknown_verdict(name, sent.doubt, wants=("idle", "new", "append", "insert", "change"))
    evidence, numbers = sent.evidence(*kinds), sent.numbers(*kinds)
    edits = {kind: ratio for kind in ("append", "insert", "change") if (ratio := sent.last_ratio(kind)) is not None}
    if missing := tuple({"insert", "append"} - edits.keys()):
        why = f"not measured: {' and '.join(sorted(missing))}"
        return unknown_verdict(name, why, evidence, numbers, wants=missing)
    if all(ratio >= _WHOLE for ratio in edits.values()):
        margin = _confidence(min(edits.values()), CHEAP)
        return Verdict(name, "no", "an edited file is sent whole", margin, tuple(evidence), numbers)
    copy = sent.last_ratio("copy")
    if copy is None or CHEAP < copy < _WHOLE:
        why = "whether deduplication explains it is not known, because a copy is sent in part"
        return unknown_verdict(name, why, evidence, numbers, wants=("copy",))
    if copy >= _WHOLE:
        return _judge_plain_delta(edits, sent, evidence, numbers)
    return _judge_delta_beside_deduplication(sent, evidence, numbers)


def _judge_plain_delta(
    edits: dict[str, float], sent: EditCosts, evidence: list[str], numbers: dict[str, float]
) -> Verdict:
    """Judge a client without deduplication, where a cheap edit means delta encoding."""
    inside = {kind: ratio for kind, ratio in edits.items() if kind != "append" and ratio <= CHEAP}
    if inside and edits["append"] <= CHEAP:
        return _confirm_delta(sent, min(inside.values()), evidence, numbers)
    if inside or edits["append"] > CHEAP:
        why = "an edit sends neither the whole file nor a small part"
        return unknown_verdict("delta", why, evidence, numbers, wants=("new", "append", "insert", "change"))
    why = "an append sends only the new bytes; an edit within the file sends more"
    return unknown_verdict("delta", why, evidence, numbers)


def _judge_delta_beside_deduplication(sent: EditCosts, evidence: list[str], numbers: dict[str, float]) -> Verdict:
    """Judge delta encoding by comparing edits with the same edits of a file of another name."""
    pairs = {kind: pair for kind in ("insert", "change") if (pair := sent.last_twins(kind)) is not None}
    if missing := tuple(f"twin_{kind}" for kind in ("insert", "change") if kind not in pairs):
        why = "edits and copies are cheap; whether delta encoding or deduplication does it is not known"
        return unknown_verdict("delta", why, evidence, numbers, wants=missing)
    shares = {kind: pair[2] / max(1.0, pair[3]) for kind, pair in pairs.items()}
    numbers |= {f"{kind}_over_twin": round(share, 6) for kind, share in shares.items()}
    better = [kind for kind, share in shares.items() if share <= _DELTA and pairs[kind][0] <= CHEAP]
    if better:
        return _confirm_delta(sent, min(pairs[kind][0] for kind in better), evidence, numbers, min(shares.values()))
    again = ("new", "copy", "append", "insert", "change", "twin_insert", "twin_change")
    if any(share < _EXPLAINED for share in shares.values()):
        why = "edits cost less than deduplication explains, but not clearly"
        return unknown_verdict("delta", why, evidence, numbers, wants=again)
    fine = max(0.0, min(pair[2] for pair in pairs.values()) - (sent.last_cost_bytes("copy") or 0.0))
    if fine < _FINE_BYTES:
        why = "small blocks are deduplicated, which saves as much as delta encoding"
        return unknown_verdict("delta", why, evidence, numbers)
    detail = "edits cost as much in a file of another name: blocks are deduplicated"
    return Verdict("delta", "no", detail, _confidence(min(shares.values()), _DELTA), tuple(evidence), numbers)


def _confirm_delta(
    sent: EditCosts, deciding: float, evidence: list[str], numbers: dict[str, float], share: float | None = None
) -> Verdict:
    insert = sent.last_ratio("insert")
    is_rolling = insert is not None and insert <= CHEAP
    condition = "even if it has moved (rolling)" if is_rolling else "if it is at its old place (fixed blocks)"
    costs = [cost for kind in ("insert", "change") if (cost := sent.last_cost_bytes(kind)) is not None]
    margin = min([_confidence(deciding, CHEAP), *([] if share is None else [_confidence(share, _DELTA)])])
    detail = f"unchanged content is not sent, {condition}; {format_size(min(costs))} for a small edit"
    return Verdict("delta", "yes", detail, margin, tuple(evidence), numbers)


def compression(sent: EditCosts, observations: Sequence[Observation]) -> Verdict:
    """Judge whether content is compressed before it is sent, and which files are spared (IMC 2013, 4.5)."""
    name, kinds = "compression", ("text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg")
    if sent.doubt:
        return unknown_verdict(name, sent.doubt, wants=("idle", "new", "text"))
    evidence, numbers = sent.evidence(*kinds), sent.numbers(*kinds)
    packed = {
        observation.kind: observation.zlib_bytes / observation.size_bytes
        for observation in observations
        if observation.zlib_bytes is not None and observation.size_bytes and observation.is_valid
    }
    numbers |= {f"{kind}_zlib": round(ratio, 6) for kind, ratio in packed.items()}
    texts = sent.ratios.get("text", [])
    if not texts or packed.get("text", 1.0) > _COMPRESSED * 0.75:
        return unknown_verdict(name, "no text that compresses well was measured", evidence, numbers, wants=("text",))
    if any(ratio > _MORE for ratio in texts):
        return unknown_verdict(name, "more than the file is sent, so other files are sent with it", evidence, numbers)
    if all(ratio >= _NOT_COMPRESSED for ratio in texts):
        margin = _confidence(min(texts), packed["text"])
        size = format_size(
            min(
                observation.size_bytes
                for observation in observations
                if observation.kind == "text" and observation.is_valid
            )
        )
        return Verdict(name, "no", f"text of {size} is sent as it is", margin, tuple(evidence), numbers)
    if any(ratio > _COMPRESSED for ratio in texts):
        return unknown_verdict(name, "text is hardly smaller when it is sent", evidence, numbers, wants=("text",))
    if (share := max(sent.shares["text"])) > _COMPRESSED:
        # An encoding that lengthens text less than random bytes (JSON, base64 for anything but text) saves nothing.
        why = f"text costs less than random bytes, but {share:.0%} of its size: random bytes may be encoded or padded"
        return unknown_verdict(name, why, evidence, numbers)
    if min(sent.shares["text"]) < _LEAST_PACKED * packed["text"]:
        why = "less was sent than any compression leaves of this text, so not all of it was seen"
        return unknown_verdict(name, why, evidence, numbers, wants=("text",))
    policy, wants = [], []
    for kind in ("text_in_jpeg", "text_as_jpeg"):
        ratio = sent.last_ratio(kind)
        if ratio is not None and sent.shares[kind][-1] < _LEAST_PACKED * packed.get(kind, 0.0):
            ratio = None  # not all of it was seen
        if ratio is None:
            wants.append(kind)
        policy.append(None if ratio is None or _COMPRESSED < ratio < _NOT_COMPRESSED else ratio <= _COMPRESSED)
    if "jpeg" not in numbers:
        wants.append("jpeg")
    in_head, in_name = policy
    detail = "which files are not compressed is not known"
    if in_head is not None and in_name is not None:
        detail = _POLICY[in_head, in_name]
    detail += f"; to {max(texts):.0%} where zlib -6 gets {packed['text']:.0%}"
    return Verdict(name, "yes", detail, _confidence(max(texts), _COMPRESSED), tuple(evidence), numbers, tuple(wants))
