"""Bundling: whether many small files travel together (IMC 2013, section 4.2).

What may live here: the verdict on what each additional file adds to a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.lab.detect.sent import EditCosts
from pytest_cloudbench.lab.detect.values import Observation, Verdict, size_text, unknown, valid_of
from pytest_cloudbench.lab.detect.waits import ASKED_BYTES, too_close, unseen

_PER_FILE, _SEVERAL, _NEVER = 0.4, 0.25, 0.06
"""Connections or exchanges per additional file: one each; one for four or more; none."""
_NO_ANSWER_BYTES, _FEW_ANSWER_BYTES = 12, 26
"""Bytes back for each file: below the first no answer fits; below the second no HTTP answer fits, if few packets carry
them (HTTP/1.1 has at least 38 bytes, three quarters of them late)."""
_FEW_ANSWERS, _ANSWERS_TO_SEVERAL = 0.5, 2.5
"""Packets with answers: for each file of a stream; for each exchange of a batch."""
_MOST_ASIDES = 2
_AHEAD, _BEHIND = 0.05, 0.25
_LEAST_ROUND, _LARGEST_ROUND, _LEAST_ROUNDS = 0.05, 0.5, 4
_BEFORE, _HANDSHAKE = 0.03, 0.005
"""The server's questions precede the content they ask for by this share of it; a handshake is not a question."""
_NEARLY_ALL = 0.98
"""Share of what is sent; what the server says after that is no longer a question."""
_REPEATS = 2


def bundling(sent: EditCosts, observations: Sequence[Observation]) -> Verdict:
    """Whether many small files travel together, without a connection, a wait or an answer for each.

    Two batches of as many bytes in different numbers of files are compared, so whatever does not depend on the number
    of files cancels out.
    """
    name, wants = "bundling", ("few", "many")
    few, many = valid_of(observations, "few"), valid_of(observations, "many")
    if sent.doubt:
        return unknown(name, sent.doubt, wants=("idle", "new", *wants))
    if close := too_close((*few, *many)):
        return unknown(name, close)
    evidence = [
        f"{each.files} files of {size_text(each.size_bytes / max(1, each.files))}: {each.syns} connections, "
        f"{each.exchanges} exchanges, {each.down_bytes} bytes back"
        for each in (*few, *many)
    ]
    # A connection for each file needs no second batch to be seen.
    if many and not few and min(each.syns / max(1, each.files) for each in many) >= 2 * _PER_FILE:
        syns = many[-1].syns / many[-1].files
        detail = f"a connection for each file ({syns:.2g})"
        return Verdict(name, "no", detail, round(1 - _PER_FILE / syns, 4), tuple(evidence), {"syns_per_file": syns})
    if not few or not many:
        return unknown(name, "two batches of files are needed", evidence, wants=wants)
    idle = max(valid_of(observations, "idle"), key=lambda each: each.exchanges / max(each.duration_s, 1e-9))
    return _compared(few, many, idle, evidence)


def _compared(
    few: Sequence[Observation], many: Sequence[Observation], idle: Observation, evidence: list[str]
) -> Verdict:
    """The verdict on pairs of batches."""
    name = "bundling"
    slopes = [_slopes(*pair, idle) for pair in zip(few, many, strict=False)]
    numbers = {f"{key}_per_file": round(value, 4) for key, value in slopes[-1].items()}
    if any(each.up_bytes < 0.5 * each.size_bytes for each in (*few, *many)):
        return unknown(name, "fewer bytes were uploaded than the files have", evidence, numbers, wants=("few", "many"))
    is_h2 = any(each.offers_h2 for each in (*few, *many))
    kinds = {_bundled(slope, each, is_h2=is_h2) for slope, each in zip(slopes, few, strict=False)}
    if "no" not in kinds and "bundle" not in kinds and (asked := max(map(_asked_bytes, many))) >= ASKED_BYTES:
        numbers["asked_bytes_per_file"] = round(asked, 2)
        detail = f"the server requests each file ({asked:.0f} bytes), several at a time"
        return Verdict(name, "no", detail, round(1 - ASKED_BYTES / asked, 4), tuple(evidence), numbers)
    if len(kinds) > 1:
        return unknown(name, "two measurements disagree", evidence, numbers)
    if "no" not in kinds and (hidden := unseen(many)):
        return unknown(name, hidden, evidence, numbers)
    return _told(kinds.pop(), slopes[-1], len(slopes) < _REPEATS, evidence, numbers)


def _told(
    kind: str, slope: dict[str, float], may_repeat: bool, evidence: list[str], numbers: dict[str, float]
) -> Verdict:
    """The verdict on what each additional file adds."""
    name, again = "bundling", ("few", "many") if may_repeat else ()
    if kind == "no":
        is_syn = slope["syns"] >= _PER_FILE
        much = slope["syns" if is_syn else "exchanges"]
        detail = f"{'a connection' if is_syn else 'an exchange'} for each file ({much:.2g})"
        return Verdict(name, "no", detail, round(1 - _PER_FILE / max(much, _PER_FILE), 4), tuple(evidence), numbers)
    if kind == "thin":
        why = "more exchanges for more files, but not one for each"
        return unknown(name, why, evidence, numbers, wants=again)
    if kind == "stream":
        why = f"files follow each other without a wait, and {slope['down_bytes']:.0f} bytes come back for each"
        return unknown(name, why, evidence, numbers, wants=again if slope["down_bytes"] >= ASKED_BYTES else ())
    back, most = max(0.0, slope["late_bytes"]), _NO_ANSWER_BYTES
    most = most if kind == "bundle" and back <= most else _FEW_ANSWER_BYTES
    detail = "many files travel as one, without answers for each"
    if kind == "batches":
        detail = (
            f"about {1 / max(slope['syns'], slope['exchanges']):.0f} files at a time, with one answer for all of them"
        )
    return Verdict(name, "yes", detail, round(1 - back / most, 4), tuple(evidence), numbers)


def _asked_bytes(each: Observation) -> float:
    """Bytes that the server sends for each file before the client sends it; 0 if the client does not follow them.

    It follows them if it is never ahead of them, and again and again has soon sent in proportion to them. Answers are
    not followed like that: they come after the file, when the next ones are on their way. Nor is one list of everything
    that is wanted.
    """
    total = sum(up for _, up in each.rounds_bytes)
    said, sent, rounds = 0, 0, []
    for back, up in each.rounds_bytes:
        rounds.append((back, up))
        said, sent = said + back, sent + up
        if sent >= _NEARLY_ALL * total:
            break
    shares = [up / max(1, sent) for _, up in rounds]
    ahead = behind = heard = gone = 0.0
    for (back, _), share in zip(rounds, shares, strict=True):
        ahead = max(ahead, gone - heard)
        heard, gone = heard + back / max(1, said), gone + share
        behind = max(behind, heard - gone)
    often = sum(share >= _LEAST_ROUND for share in shares) >= _LEAST_ROUNDS
    goes_by_them = often and max(shares) <= _LARGEST_ROUND and ahead <= _AHEAD and behind <= _BEHIND
    return said / each.files if goes_by_them and _leads(each) else 0.0


def _leads(each: Observation) -> bool:
    """Whether the server's share was ever ahead of the client's: questions can be, answers to files cannot.

    If files follow each other without a wait, their answers come some time after them, and would otherwise look like
    questions.
    """
    whole_up = sum(up for _, up in each.rounds_bytes)
    rounds, sent = [], 0
    for back, up in each.rounds_bytes:
        rounds.append((back if sent > _HANDSHAKE * whole_up else 0, sent / max(1, whole_up)))
        sent += up
    whole_back, said = sum(back for back, _ in rounds), 0
    for back, share in rounds:
        said += back
        if said / max(1, whole_back) - share >= _BEFORE and share < _NEARLY_ALL:
            return True
    return False


def _slopes(few: Observation, many: Observation, idle: Observation) -> dict[str, float]:
    """What each additional file adds, less what the idle client would have sent.

    If late packets were not counted, everything that comes may be answers.
    """
    files = many.files - few.files
    longer_s = many.duration_s - few.duration_s
    found: dict[str, float] = {}
    for key in ("syns", "exchanges", "down_bytes", "answers", "late_bytes", "late"):
        if None in (getattr(many, key), getattr(few, key)):
            found[key] = found["down_bytes" if key == "late_bytes" else "answers"]
            continue
        while_idle = (getattr(idle, key) or 0) / max(idle.duration_s, 1e-9) * longer_s
        found[key] = (getattr(many, key) - getattr(few, key) - max(0.0, while_idle)) / max(1, files)
    return found


def _bundled(slope: dict[str, float], few: Observation, *, is_h2: bool) -> str:
    """``no``; ``bundle``; ``batches`` of several files; or what may be either: ``stream``, ``thin``.

    What comes back before the files may be a list of what is wanted, as rsync's server sends it; entries long enough to
    ask for a file by its name or digest may be questions instead.
    """
    much = max(slope["syns"], slope["exchanges"])
    is_asked = slope["down_bytes"] - max(0.0, slope["late_bytes"]) >= ASKED_BYTES
    is_little = slope["late_bytes"] <= _FEW_ANSWER_BYTES and not is_asked and not is_h2
    if much >= _PER_FILE:
        return "no"
    if much > _NEVER:
        # Answers to single files would come in the middle of a batch of large ones, or as one packet each after it.
        is_one = slope["late"] <= _ANSWERS_TO_SEVERAL * much and few.asides <= _MOST_ASIDES
        return "batches" if much <= _SEVERAL and is_little and is_one else "thin"
    if slope["late"] > _FEW_ANSWERS:  # with compressed headers, HTTP/2 answers in 12 bytes or fewer
        return "stream"
    return "bundle" if is_little or (slope["late_bytes"] <= _NO_ANSWER_BYTES and not is_asked) else "stream"
