"""One page about runs: what was measured on what, what is good and bad, provider beside provider, each experiment.

What may live here: the order of the page and its words. It needs nothing else: no network, and JavaScript only for what
is shown where the pointer is. It is made piece by piece, so that its records are never in memory together.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape

from pytest_cloudbench import __version__
from pytest_cloudbench.data import read_page_part
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.ranking import Distance
from pytest_cloudbench.report import html, versus
from pytest_cloudbench.report.chapters import Chapter, chapters
from pytest_cloudbench.report.comparison import BEST, Standing, standings
from pytest_cloudbench.report.gathering import Gathered, Measurement, moment
from pytest_cloudbench.report.html import safe
from pytest_cloudbench.report.outcomes import ANSWERS, MARKS, claims

_COMMIT = re.compile("_[0-9a-f]{40}_")
"""In the name of a run's file; the run's commit has a column of its own."""

_MANY = 3
"""Experiments of one test above which their figures are folded away at first."""


def page(gathered: Gathered, title: str = "Cloud storage, measured") -> Iterator[str]:
    """Yield the page in pieces. If a part cannot be drawn, the reason stands in its place."""
    found = gathered.measurements
    names = html.ElementIds()
    parts = chapters(found, names, gathered.earlier)
    script = read_page_part("report.js")
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'; script-src 'sha256-{allowed}'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="pytest-cloudbench {escape(__version__)}"><title>{safe(title)}</title>'
        f'<style>{read_page_part("report.css")}</style></head><body><a class="skip" href="#measured">To the results</a>'
        f"{html.patterns()}<header><h1>{safe(title)}</h1>{_lead(found)}</header>"
    )
    yield _contents(parts)
    yield "<main>"
    yield from _measured(gathered)
    yield from _good_and_bad(found, parts)
    yield from _beside(found, parts)
    for part in parts:
        yield from part.html(folded=len(part.groups) > _MANY)
    yield f"</main>{_footer()}<script>{script}</script></body></html>\n"


def _lead(found: Sequence[Measurement]) -> str:
    if not found:
        return '<p class="lead">Nothing was measured.</p>'
    subjects = list(dict.fromkeys(each.subject for each in found if each.subject))
    shown = ", ".join(subjects[:4]) + (f" and {len(subjects) - 4} more" if len(subjects) > 4 else "")
    ops = sum(int(each.number("ops") or 0) for each in found)
    doubted = sum(bool(each.info["doubts"]) for each in found)
    counts = Counter(each.status for each in claims(found))
    tiles = [
        (f"{len(found):,}", "experiment" + "s" * (len(found) != 1)),
        (f"{ops:,}" if ops else "-", "operations" if ops else "operations: not counted"),
        (f"{counts['broken']:,}", "\u2717 broken"),
        *((f"{counts[each]:,}", f"? {each}") for each in ("unknown", "inconclusive") if counts[each]),
        (f"{counts['met']:,}", "\u2713 met"),
        (f"{doubted:,}", "? with doubts" if doubted else "with doubts"),
    ]
    boxes = "".join(f"<li><b>{number}</b><span>{safe(what)}</span></li>" for number, what in tiles)
    return f'<p class="lead">{safe(shown)}. {safe(_nature(found))}</p><ul class="tiles">{boxes}</ul>'


def _nature(found: Sequence[Measurement]) -> str:
    """Return what kind of thing was measured, in a sentence."""
    kinds = {each.info["emulated"] for each in found}
    if kinds == {True}:
        return "All of it is emulated: this measures profiles, clients and the loopback, not services."
    if kinds & {True, "some"}:
        return "Some of it is emulated. A difference between emulated and real is not one between services."
    return "" if kinds == {False} else "Whether it was emulated is not known for all of it."


def _contents(parts: Sequence[Chapter]) -> str:
    links = [("measured", "What was measured"), ("good-and-bad", "Good and bad"), ("beside", "Providers compared")]
    links += [(part.name, part.title) for part in parts]
    items = "".join(f'<li><a href="#{name}">{safe(title)}</a></li>' for name, title in links)
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>'


# --- what was measured on what ---


def _measured(gathered: Gathered) -> Iterator[str]:
    found = gathered.measurements
    yield '<section id="measured" aria-labelledby="measured-h"><h2 id="measured-h">What was measured on what</h2>'
    rows = []
    for run in dict.fromkeys(each.run for each in found):
        of = [each for each in found if each.run == run]
        info = of[0].info
        seeds = sorted({str(each.info.get("seed")) for each in of if each.info.get("seed")})
        scale = sorted({each.info["time_scale"] for each in of})
        clock = "real" if scale == [1.0] else ", ".join(f"{each:g} x" for each in scale)
        rows.append([
            _COMMIT.sub("_..._", run.name), moment(of[0]), str(info.get("machine") or "-"),
            run.commit or "-", _agents(of), clock, ", ".join(seeds) or "-",
        ])  # fmt: skip
    if rows:
        titles = ["run", "began", "machine", "commit", "agents", "clock", "seed"]
        yield html.table("Runs", titles, rows, style="words")
        titles = ["provider or client", "kind", "profile", "experiments", "operations"]
        yield html.table("Providers and clients", titles, _subjects(found), style="words")
        versions = html.table("Versions", ["what", "version", "in how many runs"], _versions(found), style="words")
        yield f'<details class="run"><summary>Versions and settings of libraries</summary>{versions}</details>'
    machines = {str(each.info.get("machine") or "-") for each in found}
    if len(machines) > 1:
        yield _warning("Runs of different machines", [f"{safe(each)}" for each in sorted(machines)],
                       "Times of different machines are not comparable.")  # fmt: skip
    if gathered.left_out:
        yield _warning("Left out", [safe(line) for line in gathered.left_out])
    notes = Counter(note for each in found for note in each.info["notes"])
    if notes:
        told = html.listed(f"{safe(note)} <span class=soft>({count:,} x)</span>" for note, count in notes.items())
        yield f"<details><summary>{len(notes)} note{'s' * (len(notes) > 1)}</summary>{told}</details>"
    yield "</section>"


def _subjects(found: Sequence[Measurement]) -> Iterator[list[str]]:
    for subject in dict.fromkeys(each.subject for each in found):
        of = [each for each in found if each.subject == subject]
        profiles = sorted({str(each.info.get("profile")) for each in of if each.info.get("profile")})
        ops = [each.number("ops") for each in of]
        known = [int(each) for each in ops if each is not None]
        yield [
            subject or "-", ", ".join(dict.fromkeys(each.nature for each in of)), ", ".join(profiles) or "-",
            f"{len(of):,}", f"{sum(known):,}" if known else "-",
        ]  # fmt: skip


def _agents(found: Sequence[Measurement]) -> str:
    counts = sorted({count for each in found if isinstance(count := each.info.get("agents"), int)})
    return ", ".join(map(str, counts)) or "-"


def _versions(found: Sequence[Measurement]) -> Iterator[list[str]]:
    runs: dict[tuple[str, str], set[str]] = {}
    for each in found:
        for name, version in each.info["versions"].items():
            runs.setdefault((str(name), str(version)), set()).add(each.run.name)
    for (name, version), names in sorted(runs.items()):
        yield [name, version, f"{len(names):,}"]


def _warning(title: str, lines: Sequence[str], after: str = "") -> str:
    """Return a box with a list of HTML lines."""
    return f'<div class="warn"><p><b>{safe(title)}</b></p>{html.listed(lines)}<p>{safe(after)}</p></div>'.replace(
        "<p></p>", ""
    )


def _links(about: Sequence[Measurement], where: Mapping[int, Chapter]) -> str:
    """Return links to experiments, each once; of very many the first ones."""
    links: dict[str, None] = {}
    for each in about:
        part = where[id(each)]
        named = ", ".join(dict.fromkeys((part.title, part.label(each), each.subject)))
        links[f'<a href="#{part.place(each)}">{safe(named)}</a>'] = None
    shown = ", ".join(list(links)[:6])
    return shown + (f" and {len(links) - 6} more" if len(links) > 6 else "")


# --- what is good and bad ---


def _doubted(found: Sequence[Measurement], where: Mapping[int, Chapter]) -> str:
    """Return what may be wrong with the numbers, with links to the experiments that it is about."""
    doubts: dict[str, list[Measurement]] = {}
    for each in found:
        for doubt in each.info["doubts"]:
            doubts.setdefault(doubt, []).append(each)
    lines = [f"{safe(doubt)}: {_links(about, where)}" for doubt, about in doubts.items()]
    return _warning("Doubts: these numbers may be wrong", lines) if lines else "<p>Nothing is in doubt.</p>"


def _good_and_bad(found: Sequence[Measurement], parts: Sequence[Chapter]) -> Iterator[str]:
    yield '<section id="good-and-bad" aria-labelledby="gab-h"><h2 id="gab-h">What is good and bad</h2>'
    claimed, where = claims(found), {id(each): part for part in parts for each in part.members}
    yield _doubted(found, where)
    if not claimed:
        yield "<p>These runs had asserts only: no bound was given, and no expectation is recorded for them.</p>"
    for status, title in ANSWERS.items():
        of = [each for each in claimed if each.status == status]
        if not of:
            continue
        rows = [
            [f'<span class="v v-{status}">{MARKS[status]}</span>', _links([each.about], where), safe(each.claim)]
            for each in of
        ]
        shown = html.table(title, ["verdict", "experiment", "claim"], rows, style="words", is_html=True)
        is_folded = status in ("met", "note") and len(of) > 5
        yield f"<details><summary>{MARKS[status]}: {len(of):,}</summary>{shown}</details>" if is_folded else shown
    if any(each.status == "unknown" for each in claimed):
        yield "<p>Unknown is not good: something made the numbers doubtful, so nothing follows from them.</p>"
    if any(each.status == "inconclusive" for each in claimed):
        yield "<p>Inconclusive is not good: the gate cannot tell, and its line says what it would need.</p>"
    yield "</section>"


# --- provider beside provider ---


def _beside(found: Sequence[Measurement], parts: Sequence[Chapter]) -> Iterator[str]:
    yield '<section id="beside" aria-labelledby="beside-h"><h2 id="beside-h">Providers side by side</h2>'
    yield from _in_turns(found, parts)
    single = [each for each in found if each.versus is None]
    tables, notes = standings(single)
    if not tables:
        yield "<p>No experiment ran on more than one provider.</p></section>" if single else "</section>"
        return
    yield (
        "<p>* is the best by 25 % or more (five runs: 10 %, rates: 1 point), ~ is closer to the best than that. A mark "
        "needs a certainty of 99 %, shared among all comparisons. Below a value is its distance from the best one, "
        "with its 95 % interval: how certain that is within these runs, not on another day.</p>"
    )
    yield html.listed(map(safe, notes))
    where = {each.experiment: (part, each) for part in parts for each in part.members}
    alike: dict[tuple[str, ...], list[Standing]] = {}
    for standing in tables:
        alike.setdefault((where[standing.experiment][0].title, *standing.titles), []).append(standing)
    former = ""
    for (title, *titles), members in alike.items():
        yield f"<h3>{safe(title)}</h3>" if title != former else ""
        former, rows = title, []
        for standing in members:
            part, about = where[standing.experiment]
            label = safe(part.label(about))
            link, again = f'<a href="#{part.place(about)}">{label}</a>', f'<span class="of">{label}</span>'
            rows += [[again if number else link, *_standing_row(standing, *each)]
                     for number, each in enumerate(standing.providers)]  # fmt: skip
        caption = f"Providers compared: {title}, {', '.join(titles)}"
        yield html.table(caption, ["experiment", "provider", *titles], rows, style="values", is_html=True)
        told: dict[str, list[str]] = {}
        for standing in members:
            for line in standing.told:
                told.setdefault(line, []).append(where[standing.experiment][0].label(where[standing.experiment][1]))
        yield html.listed((safe(_for(line, labels, len(members))) for line, labels in told.items()), "soft")
    yield "</section>"


def _in_turns(found: Sequence[Measurement], parts: Sequence[Chapter]) -> Iterator[str]:
    """Yield the answers about two sides that were measured in turns; the chapters have the intervals of the rest."""
    where = {id(each): part for part in parts for each in part.members}
    rows = [
        [_links([each], where), *(safe(each.versus.get(side)) for side in "AB"),
         "".join(f"<small>{safe(line)}</small>" for line in versus.deciding(each.versus)) or "-"]
        for each in found if each.versus is not None
    ]  # fmt: skip
    if rows:
        titles = ["experiment", "A", "B", "B against A"]
        yield html.table("Two sides, measured in turns", titles, rows, style="words", is_html=True)


def _for(line: str, labels: Sequence[str], of: int) -> str:
    """Return a line with the experiments that it is about, unless it is about all of them."""
    return line if len(labels) == of else f"{'; '.join(labels[:4])}{' and others' * (len(labels) > 4)}: {line}"


def _standing_row(standing: Standing, provider: str, texts: Sequence[str], is_doubted: bool) -> list[str]:
    cells = [safe(provider) + ("<small>has doubts, not compared</small>" if is_doubted else "")]
    for key, text in zip(standing.keys, texts, strict=True):
        shown = f'<span class="best">{safe(text.strip())}</span>' if text.endswith(BEST) else safe(text.strip())
        far = standing.distances.get(key, ("", {}))[1].get(provider)
        cells.append(f"{shown}<small>{safe(_distance_text(key, far))}</small>" if far else shown)
    return cells


def _distance_text(key: str, far: Distance) -> str:
    """Return a difference and its interval: ``+38 % (31 to 46)``, or in points for fractions."""
    low, high = sorted((far.low, far.high))
    unit = "points" if far.is_points else "%"
    if not far.is_points and METRICS[key].better == "lower" and far.low > 1:
        return f"{1 + far.value:.3g} x ({1 + low:.3g} to {1 + high:.3g})"
    return f"{far.value * 100:+.3g} {unit} ({low * 100:.3g} to {high * 100:.3g})"


def _footer() -> str:
    return (
        f"<footer><p>Made by pytest-cloudbench {escape(__version__)}. p50, p95, p99: half, 95 %, 99 % of the "
        "operations that succeeded took at most this long, counted from when they were due. A dash is not known; it is "
        "never zero. Curves are drawn from classes 1 % wide; percentiles in tables and captions are exact.</p></footer>"
    )
