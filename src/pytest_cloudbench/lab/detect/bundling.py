"""Bundling: whether many small files travel together (IMC 2013, section 4.2).

The verdict rests on the cost of each additional file in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.lab.detect.sent import EditCosts
from pytest_cloudbench.lab.detect.values import Observation, Verdict, format_size, select_valid, unknown_verdict
from pytest_cloudbench.lab.detect.waits import ASKED_BYTES, explain_hidden_waits, explain_short_trips
from pytest_cloudbench.support.wording import format_count

_PER_FILE, _SEVERAL, _NEVER = 0.4, 0.25, 0.06
"""Connections or exchanges per additional file: at least one each, one for four or more files, and none."""
_NO_ANSWER_BYTES, _FEW_ANSWER_BYTES = 12, 26
"""Server-to-client bytes per file. Below the first threshold there was no reply per file. Below the second there was no
HTTP reply, if few packets carry them (HTTP/1.1 has at least 38 bytes, three quarters of them late)."""
_FEW_ANSWERS, _ANSWERS_TO_SEVERAL = 0.5, 2.5
"""Packets with answers, for each file of a stream and for each exchange of a batch."""
_MOST_ASIDES = 2
_AHEAD, _BEHIND = 0.05, 0.25
_LEAST_ROUND, _LARGEST_ROUND, _LEAST_ROUNDS = 0.05, 0.5, 4
_BEFORE, _HANDSHAKE = 0.03, 0.005
"""The share of the content by which the server's questions precede it, and the share that is still the handshake."""
_NEARLY_ALL = 0.98
"""The share of the upload after which the server no longer asks questions."""
_REPEATS = 2


def bundling(sent: EditCosts, observations: Sequence[Observation]) -> Verdict:
    """Judge whether many small files travel together, without a connection, a wait or an answer for each.

    Two batches of as many bytes in different numbers of files are compared, so whatever does not depend on the number
    of files cancels out.
    """
    capability, wants = "bundling", ("few", "many")
    few, many = select_valid(observations, "few"), select_valid(observations, "many")
    if sent.doubt:
        return unknown_verdict(capability, sent.doubt, wants=("idle", "new", *wants))
    if reason := explain_short_trips((*few, *many)):
        return unknown_verdict(capability, reason)
    evidence = [
        f"{format_count(batch.files, 'file')} of {format_size(batch.size_bytes / max(1, batch.files))}: "
        f"{format_count(batch.syns, 'connection')}, {format_count(batch.exchanges, 'exchange')}, "
        f"{format_count(batch.down_bytes, 'byte')} back"
        for batch in (*few, *many)
    ]
    all_idle = select_valid(observations, "idle")
    # A connection for each file needs no second batch to be seen.
    idle_syns_per_s = max(idle.syns / max(idle.duration_s, 1e-9) for idle in all_idle)
    own_syns = [(batch.syns - idle_syns_per_s * batch.duration_s) / max(1, batch.files) for batch in many]
    if many and not few and min(own_syns) >= 2 * _PER_FILE:
        syns = own_syns[-1]
        detail = f"a connection for each file ({syns:.2g})"
        return Verdict(
            capability, "no", detail, round(1 - _PER_FILE / syns, 4), tuple(evidence), {"syns_per_file": syns}
        )
    if not few or not many:
        return unknown_verdict(capability, "two batches of files are needed", evidence, wants=wants)
    idle = max(all_idle, key=lambda idle: idle.exchanges / max(idle.duration_s, 1e-9))
    return _compare_batches(few, many, idle, evidence)


def _compare_batches(
    few: Sequence[Observation], many: Sequence[Observation], idle: Observation, evidence: list[str]
) -> Verdict:
    """Return the verdict on pairs of batches."""
    capability = "bundling"
    slopes = [_cost_per_file(*pair, idle) for pair in zip(few, many, strict=False)]
    numbers = {f"{key}_per_file": round(value, 4) for key, value in slopes[-1].items()}
    if not all(batch.has_sent_all for batch in (*few, *many)):
        return unknown_verdict(
            capability, "fewer bytes were uploaded than the files have", evidence, numbers, wants=("few", "many")
        )
    is_h2 = any(batch.offers_h2 for batch in (*few, *many))
    classes = {_classify(slope, batch, is_h2=is_h2) for slope, batch in zip(slopes, few, strict=False)}
    if (
        "no" not in classes
        and "bundle" not in classes
        and (requested := max(map(_requested_bytes, many))) >= ASKED_BYTES
    ):
        numbers["asked_bytes_per_file"] = round(requested, 2)
        detail = f"the server requests each file ({requested:.0f} bytes), several at a time"
        return Verdict(capability, "no", detail, round(1 - ASKED_BYTES / requested, 4), tuple(evidence), numbers)
    if len(classes) > 1:
        return unknown_verdict(capability, "two measurements disagree", evidence, numbers)
    if "no" not in classes and (reason := explain_hidden_waits(many)):
        return unknown_verdict(capability, reason, evidence, numbers)
    return _judge_slopes(classes.pop(), slopes[-1], len(slopes) < _REPEATS, evidence, numbers)


def _judge_slopes(
    kind: str, slope: dict[str, float], may_repeat: bool, evidence: list[str], numbers: dict[str, float]
) -> Verdict:
    """Return the verdict on the cost of each additional file."""
    capability, wants = "bundling", ("few", "many") if may_repeat else ()
    if kind == "no":
        is_syn = slope["syns"] >= _PER_FILE
        per_file = slope["syns" if is_syn else "exchanges"]
        detail = f"{'a connection' if is_syn else 'an exchange'} for each file ({per_file:.2g})"
        return Verdict(
            capability, "no", detail, round(1 - _PER_FILE / max(per_file, _PER_FILE), 4), tuple(evidence), numbers
        )
    if kind == "thin":
        why = "more exchanges for more files, but not one for each"
        return unknown_verdict(capability, why, evidence, numbers, wants=wants)
    if kind == "stream":
        why = f"files follow each other without a wait, and {slope['down_bytes']:.0f} bytes come back for each"
        return unknown_verdict(
            capability, why, evidence, numbers, wants=wants if slope["down_bytes"] >= ASKED_BYTES else ()
        )
    answer_bytes, limit = max(0.0, slope["late_bytes"]), _NO_ANSWER_BYTES
    limit = limit if kind == "bundle" and answer_bytes <= limit else _FEW_ANSWER_BYTES
    detail = "many files travel as one, without answers for each"
    if kind == "batches":
        detail = (
            f"about {1 / max(slope['syns'], slope['exchanges']):.0f} files at a time, with one answer for all of them"
        )
    return Verdict(capability, "yes", detail, round(1 - answer_bytes / limit, 4), tuple(evidence), numbers)


def _requested_bytes(observation: Observation) -> float:
    """Return the bytes that the server sends for each file before the client sends it, or 0 if these are no requests.

    They are requests if the client follows them: its share of the upload is never ahead of the server's share, nor far
    behind. Answers are not followed like that, because they come after the file, when the next files are on their way.
    One list of all requested files is not followed like that either.
    """
    total = sum(up for _, up in observation.rounds_bytes)
    received, uploaded, rounds = 0, 0, []
    for down, up in observation.rounds_bytes:
        rounds.append((down, up))
        received, uploaded = received + down, uploaded + up
        if uploaded >= _NEARLY_ALL * total:
            break
    shares = [up / max(1, uploaded) for _, up in rounds]
    most_ahead = most_behind = received_share = uploaded_share = 0.0
    for (down, _), share in zip(rounds, shares, strict=True):
        most_ahead = max(most_ahead, uploaded_share - received_share)
        received_share, uploaded_share = received_share + down / max(1, received), uploaded_share + share
        most_behind = max(most_behind, received_share - uploaded_share)
    has_many_rounds = sum(share >= _LEAST_ROUND for share in shares) >= _LEAST_ROUNDS
    follows_requests = (
        has_many_rounds and max(shares) <= _LARGEST_ROUND and most_ahead <= _AHEAD and most_behind <= _BEHIND
    )
    return received / observation.files if follows_requests and _has_questions(observation) else 0.0


def _has_questions(observation: Observation) -> bool:
    """Return whether the server's share was ever ahead of the client's, as questions can be and answers cannot.

    If files follow each other without a wait, their answers come some time after them, and would otherwise look like
    questions.
    """
    total_up = sum(up for _, up in observation.rounds_bytes)
    rounds, uploaded = [], 0
    for down, up in observation.rounds_bytes:
        rounds.append((down if uploaded > _HANDSHAKE * total_up else 0, uploaded / max(1, total_up)))
        uploaded += up
    total_down, received = sum(down for down, _ in rounds), 0
    for down, share in rounds:
        received += down
        if received / max(1, total_down) - share >= _BEFORE and share < _NEARLY_ALL:
            return True
    return False


def _cost_per_file(few: Observation, many: Observation, idle: Observation) -> dict[str, float]:
    """Return the cost of each additional file, less what the idle client would have sent.

    If late packets were not counted, all that the server sent counts as answers.
    """
    files = many.files - few.files
    longer_s = many.duration_s - few.duration_s
    costs: dict[str, float] = {}
    for key in ("syns", "exchanges", "down_bytes", "answers", "late_bytes", "late"):
        if None in (getattr(many, key), getattr(few, key)):
            costs[key] = costs["down_bytes" if key == "late_bytes" else "answers"]
            continue
        idle_amount = (getattr(idle, key) or 0) / max(idle.duration_s, 1e-9) * longer_s
        costs[key] = (getattr(many, key) - getattr(few, key) - max(0.0, idle_amount)) / max(1, files)
    return costs


def _classify(slope: dict[str, float], few: Observation, *, is_h2: bool) -> str:
    """Return ``no``, ``bundle`` or ``batches`` (of several files), or ``stream`` or ``thin``, which decide nothing.

    The bytes that come back before the files may be a list of requested files, as rsync's server sends it. Entries long
    enough to ask for a file by its name or digest may be questions instead.
    """
    per_file = max(slope["syns"], slope["exchanges"])
    is_asked = slope["down_bytes"] - max(0.0, slope["late_bytes"]) >= ASKED_BYTES
    has_few_answers = slope["late_bytes"] <= _FEW_ANSWER_BYTES and not is_asked and not is_h2
    if per_file >= _PER_FILE:
        return "no"
    if per_file > _NEVER:
        # Answers to single files would come in the middle of a batch of large files, or as one packet each after it.
        has_one_answer = slope["late"] <= _ANSWERS_TO_SEVERAL * per_file and few.asides <= _MOST_ASIDES
        return "batches" if per_file <= _SEVERAL and has_few_answers and has_one_answer else "thin"
    if slope["late"] > _FEW_ANSWERS:  # with compressed headers, HTTP/2 answers in 12 bytes or fewer
        return "stream"
    return "bundle" if has_few_answers or (slope["late_bytes"] <= _NO_ANSWER_BYTES and not is_asked) else "stream"
