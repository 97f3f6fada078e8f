"""The page about runs: what was measured, what is good and bad, providers compared, and a chapter for each test.

The page loads nothing from the network. Its JavaScript makes tooltips, and tables of figures' numbers, which are text
without it. The page is made piece by piece, so that the records of all runs are never in memory at the same time.
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
from pytest_cloudbench.report.chapters import Chapter, make_chapters
from pytest_cloudbench.report.comparison import BEST, Standing, rank_hosts, rank_providers
from pytest_cloudbench.report.gathering import GatheredRuns, Measurement, PageRun, format_start
from pytest_cloudbench.report.hosts import describe_host, list_hosts, list_locations
from pytest_cloudbench.report.html import safe
from pytest_cloudbench.report.outcomes import ANSWERS, MARKS, list_claims
from pytest_cloudbench.report.quantities import format_number
from pytest_cloudbench.results.machine import THIS_MACHINE
from pytest_cloudbench.support.wording import format_count

_COMMIT = re.compile("_[0-9a-f]{40}_")
"""The commit in the name of a run's file, which is shown in a column of its own."""

_MOST_UNFOLDED = 3
"""The figures of more experiments of one test than this are folded at first."""


def render_page(gathered: GatheredRuns, title: str = "Cloud storage, measured") -> Iterator[str]:
    """Yield the page in pieces. If a figure cannot be drawn, the reason is shown instead."""
    measurements = gathered.measurements
    names = html.ElementIds()
    parts = make_chapters(measurements, names, gathered.earlier)
    hosts = rank_hosts([measurement for measurement in measurements if measurement.versus is None])
    script = read_page_part("report.js")
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'; script-src 'sha256-{allowed}'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="pytest-cloudbench {escape(__version__)}"><title>{safe(title)}</title>'
        f'<style>{read_page_part("report.css")}</style></head><body><a class="skip" href="#measured">To the results</a>'
        f"{html.pattern_definitions()}<header><h1>{safe(title)}</h1>{_render_lead(measurements)}</header>"
    )
    yield _render_contents(parts, has_hosts=bool(hosts))
    yield "<main>"
    yield from _render_measured(gathered)
    yield from _render_verdicts(measurements, parts)
    yield from _render_standings(measurements, parts)
    yield from _render_hosts_compared(hosts, parts)
    for part in parts:
        yield from part.render(folded=len(part.groups) > _MOST_UNFOLDED)
    yield f"</main>{_render_footer()}<script>{script}</script></body></html>\n"


def _render_lead(measurements: Sequence[Measurement]) -> str:
    if not measurements:
        return '<p class="lead">Nothing was measured.</p>'
    subjects = list(dict.fromkeys(measurement.subject for measurement in measurements if measurement.subject))
    shown = ", ".join(subjects[:4]) + (f" and {len(subjects) - 4} more" if len(subjects) > 4 else "")
    ops = sum(int(measurement.number("ops") or 0) for measurement in measurements)
    doubted = sum(bool(measurement.info["doubts"]) for measurement in measurements)
    counts = Counter(claim.status for claim in list_claims(measurements))
    tiles = [
        (f"{len(measurements):,}", "experiment" if len(measurements) == 1 else "experiments"),
        (f"{ops:,}" if ops else "-", "operations" if ops else "operations: not counted"),
        (f"{counts['broken']:,}", "\u2717 broken"),
        *((f"{counts[status]:,}", f"? {status}") for status in ("unknown", "inconclusive") if counts[status]),
        (f"{counts['met']:,}", "\u2713 met"),
        (f"{doubted:,}", "? with doubts" if doubted else "with doubts"),
    ]
    boxes = "".join(f"<li><b>{number}</b><span>{safe(label)}</span></li>" for number, label in tiles)
    return f'<p class="lead">{safe(shown)}. {safe(_describe_nature(measurements))}</p><ul class="tiles">{boxes}</ul>'


def _describe_nature(measurements: Sequence[Measurement]) -> str:
    """Return a sentence that says whether real or emulated services were measured."""
    kinds = {measurement.info["emulated"] for measurement in measurements}
    if kinds == {True}:
        return "All of it is emulated: this measures profiles, clients and the loopback, not services."
    if kinds & {True, "some"}:
        return "Some of it is emulated. A difference between emulated and real is not one between services."
    return "" if kinds == {False} else "Whether it was emulated is not known for all of it."


def _render_contents(parts: Sequence[Chapter], *, has_hosts: bool) -> str:
    links = [("measured", "What was measured"), ("good-and-bad", "Good and bad"), ("beside", "Providers compared")]
    links += [("hosts", "Hosts compared")] if has_hosts else []
    links += [(part.name, part.title) for part in parts]
    items = "".join(f'<li><a href="#{name}">{safe(title)}</a></li>' for name, title in links)
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>'


# --- what was measured on what ---


def _render_measured(gathered: GatheredRuns) -> Iterator[str]:
    """Yield the section about runs, providers, hosts, versions and notes."""
    measurements = gathered.measurements
    yield '<section id="measured" aria-labelledby="measured-h"><h2 id="measured-h">What was measured on what</h2>'
    rows, by_run = [], dict[PageRun, list[Measurement]]()
    for measurement in measurements:
        by_run.setdefault(measurement.run, []).append(measurement)
    for run, run_measurements in by_run.items():
        info = run_measurements[0].info
        seeds = sorted(
            {str(measurement.info.get("seed")) for measurement in run_measurements if measurement.info.get("seed")}
        )
        scale = sorted({measurement.info["time_scale"] for measurement in run_measurements})
        clock = "real" if scale == [1.0] else ", ".join(f"{factor:g} x" for factor in scale)
        rows.append([
            _COMMIT.sub("_..._", run.name), format_start(run_measurements[0]), str(info.get("machine") or "-"),
            run.commit or "-", _agent_counts(run_measurements), clock, ", ".join(seeds) or "-",
        ])  # fmt: skip
    if rows:
        titles = ["run", "began", "machine", "commit", "agents", "clock", "seed"]
        yield html.table("Runs", titles, rows, style="words")
        titles = ["provider or client", "kind", "profile", "experiments", "operations", "servers"]
        yield html.table("Providers and clients", titles, _subject_rows(measurements), style="words")
        if host_rows := _host_rows(measurements):
            yield html.table("Hosts", _HOST_TITLES, host_rows, style="words")
        versions = html.table(
            "Versions", ["what", "version", "in how many runs"], _version_rows(measurements), style="words"
        )
        yield f'<details class="run"><summary>Versions and settings of libraries</summary>{versions}</details>'
    machines = {str(measurement.info.get("machine") or "-") for measurement in measurements}
    if len(machines) > 1:
        yield _warning_box("Runs of different machines", [f"{safe(machine)}" for machine in sorted(machines)],
                       "Times of different machines are not comparable.")  # fmt: skip
    if gathered.left_out:
        yield _warning_box("Left out", [safe(line) for line in gathered.left_out])
    notes = Counter(note for measurement in measurements for note in measurement.info["notes"])
    if notes:
        note_list = html.item_list(
            f"{safe(note)} <span class=soft>({count:,} x)</span>" for note, count in notes.items()
        )
        yield f"<details><summary>{format_count(len(notes), 'note')}</summary>{note_list}</details>"
    yield "</section>"


def _subject_rows(measurements: Sequence[Measurement]) -> Iterator[list[str]]:
    located = list_locations((measurement.subject, measurement.info) for measurement in measurements)
    for subject in dict.fromkeys(measurement.subject for measurement in measurements):
        subject_measurements = [measurement for measurement in measurements if measurement.subject == subject]
        profiles = sorted(
            {
                str(measurement.info.get("profile"))
                for measurement in subject_measurements
                if measurement.info.get("profile")
            }
        )
        ops = [measurement.number("ops") for measurement in subject_measurements]
        counts = [int(count) for count in ops if count is not None]
        natures = dict.fromkeys(measurement.nature for measurement in subject_measurements)
        yield [
            subject or "-", ", ".join(natures), ", ".join(profiles) or "-", f"{len(subject_measurements):,}",
            f"{sum(counts):,}" if counts else "-",
            "; ".join(located.get(subject, ())) or "-",
        ]  # fmt: skip


_HOST_TITLES = ("host", "where", "agents", "machine", "kernel", "memory", "address", "clock", "access line")


def _host_rows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """Return a row, without repetitions, for each host that carried agents, or should have."""
    rows: dict[tuple[str, ...], None] = {}
    for info in (measurement.info for measurement in measurements):
        hosts = list_hosts(info)
        if not hosts and "access_line" in info:
            description = {key: info.get(key) for key in ("agents", "machine")}
            hosts = [{"name": THIS_MACHINE, "line": info["access_line"], **description}]
        for host in hosts:
            rows[tuple(describe_host(host))] = None
    return [list(row) for row in rows]


def _agent_counts(measurements: Sequence[Measurement]) -> str:
    counts = sorted({count for measurement in measurements if isinstance(count := measurement.info.get("agents"), int)})
    return ", ".join(map(str, counts)) or "-"


def _version_rows(measurements: Sequence[Measurement]) -> Iterator[list[str]]:
    runs: dict[tuple[str, str], set[str]] = {}
    for measurement in measurements:
        for name, version in measurement.info["versions"].items():
            runs.setdefault((str(name), str(version)), set()).add(measurement.run.name)
    for (name, version), names in sorted(runs.items()):
        yield [name, version, f"{len(names):,}"]


def _warning_box(title: str, lines: Sequence[str], after: str = "") -> str:
    """Return a warning box with a list of HTML lines."""
    return f'<div class="warn"><p><b>{safe(title)}</b></p>{html.item_list(lines)}<p>{safe(after)}</p></div>'.replace(
        "<p></p>", ""
    )


def _experiment_links(about: Sequence[Measurement], where: Mapping[int, Chapter]) -> str:
    """Return links to experiments, each once, at most the first six."""
    links: dict[str, None] = {}
    for measurement in about:
        part = where[id(measurement)]
        link_text = ", ".join(dict.fromkeys((part.title, part.label(measurement), measurement.subject)))
        links[f'<a href="#{part.element_id(measurement)}">{safe(link_text)}</a>'] = None
    shown = ", ".join(list(links)[:6])
    return shown + (f" and {len(links) - 6} more" if len(links) > 6 else "")


# --- what is good and bad ---


def _render_doubts(measurements: Sequence[Measurement], where: Mapping[int, Chapter]) -> str:
    """Return the doubts about numbers, with links to the experiments that they are about."""
    doubts: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        for doubt in measurement.info["doubts"]:
            doubts.setdefault(doubt, []).append(measurement)
    lines = [f"{safe(doubt)}: {_experiment_links(doubted, where)}" for doubt, doubted in doubts.items()]
    return _warning_box("Doubts: these numbers may be wrong", lines) if lines else "<p>Nothing is in doubt.</p>"


def _render_verdicts(measurements: Sequence[Measurement], parts: Sequence[Chapter]) -> Iterator[str]:
    """Yield the section about doubts and claims, the broken ones first."""
    yield '<section id="good-and-bad" aria-labelledby="gab-h"><h2 id="gab-h">What is good and bad</h2>'
    claims = list_claims(measurements)
    where = {id(measurement): part for part in parts for measurement in part.measurements}
    yield _render_doubts(measurements, where)
    if not claims:
        yield "<p>These runs had asserts only: no bound was given, and no expectation is recorded for them.</p>"
    for status, title in ANSWERS.items():
        status_claims = [claim for claim in claims if claim.status == status]
        if not status_claims:
            continue
        rows = [
            [
                f'<span class="v v-{status}">{MARKS[status]}</span>',
                _experiment_links([claim.about], where),
                safe(claim.claim),
            ]
            for claim in status_claims
        ]
        shown = html.table(title, ["verdict", "experiment", "claim"], rows, style="words", is_html=True)
        is_folded = status in ("met", "note") and len(status_claims) > 5
        yield (
            f"<details><summary>{MARKS[status]}: {len(status_claims):,}</summary>{shown}</details>"
            if is_folded
            else shown
        )
    if any(claim.status == "unknown" for claim in claims):
        yield "<p>Unknown is not good: something made the numbers doubtful, so nothing follows from them.</p>"
    if any(claim.status == "inconclusive" for claim in claims):
        yield "<p>Inconclusive is not good: the gate cannot tell, and its line says what it would need.</p>"
    yield "</section>"


# --- provider beside provider ---


def _render_standings(measurements: Sequence[Measurement], parts: Sequence[Chapter]) -> Iterator[str]:
    yield '<section id="beside" aria-labelledby="beside-h"><h2 id="beside-h">Providers side by side</h2>'
    yield from _render_sides(measurements, parts)
    single = [measurement for measurement in measurements if measurement.versus is None]
    tables, notes = rank_providers(single)
    if not tables:
        yield "<p>No experiment ran on more than one provider.</p></section>" if single else "</section>"
        return
    yield (
        "<p>* is the best by 25 % or more (five runs: 10 %, rates: 1 point), ~ is closer to the best than that. A mark "
        "needs a certainty of 99 %, shared among all comparisons. Below a value is its distance from the best one, "
        "with its 95 % interval: how certain that is within these runs, not on another day.</p>"
    )
    yield html.item_list(map(safe, notes))
    yield from _render_standing_tables(tables, parts, "provider")
    yield "</section>"


def _render_hosts_compared(hosts: Sequence[Standing], parts: Sequence[Chapter]) -> Iterator[str]:
    """Yield the section about experiments that several hosts measured, if there are any."""
    if hosts:
        yield '<section id="hosts" aria-labelledby="hosts-h"><h2 id="hosts-h">Hosts side by side</h2>'
        yield "<p>Marked as providers are. Hosts have different sensors, which do the same kind of work.</p>"
        yield from _render_standing_tables(hosts, parts, "host")
        yield "</section>"


def _render_standing_tables(tables: Sequence[Standing], parts: Sequence[Chapter], competitor: str) -> Iterator[str]:
    """Yield tables of providers, or of hosts, one for each test and kind of columns, with remarks."""
    where = {measurement.experiment: (part, measurement) for part in parts for measurement in part.measurements}
    groups: dict[tuple[str, ...], list[Standing]] = {}
    for standing in tables:
        groups.setdefault((where[standing.experiment][0].title, *standing.titles), []).append(standing)
    former = ""
    for (title, *titles), members in groups.items():
        yield f"<h3>{safe(title)}</h3>" if title != former else ""
        former, rows = title, []
        for standing in members:
            part, measurement = where[standing.experiment]
            label = safe(part.label(measurement) + _standing_suffix(standing))
            link, again = f'<a href="#{part.element_id(measurement)}">{label}</a>', f'<span class="of">{label}</span>'
            rows += [[again if number else link, *_standing_row(standing, *provider)]
                     for number, provider in enumerate(standing.providers)]  # fmt: skip
        caption = f"{competitor.capitalize()}s compared: {title}, {', '.join(titles)}"
        yield html.table(caption, ["experiment", competitor, *titles], rows, style="values", is_html=True)
        labels_by_line: dict[str, list[str]] = {}
        for standing in members:
            for line in standing.remarks:
                labels_by_line.setdefault(line, []).append(
                    where[standing.experiment][0].label(where[standing.experiment][1])
                )
        yield html.item_list(
            (safe(_with_labels(line, labels, len(members))) for line, labels in labels_by_line.items()), "soft"
        )


def _standing_suffix(standing: Standing) -> str:
    """Return what distinguishes the results of one host, or those on one provider, from others of their experiment."""
    provider_text = f", on {standing.provider}" if standing.provider else ""
    return f"{provider_text}, from {standing.host}" if standing.host else provider_text


def _render_sides(measurements: Sequence[Measurement], parts: Sequence[Chapter]) -> Iterator[str]:
    """Yield the answers about two sides that were measured in turns. Their chapters have all intervals."""
    where = {id(measurement): part for part in parts for measurement in part.measurements}
    rows = [
        [_experiment_links([measurement], where), *(safe(measurement.versus.get(side)) for side in "AB"),
         "".join(f"<small>{safe(line)}</small>" for line in versus.deciding_lines(measurement.versus)) or "-"]
        for measurement in measurements if measurement.versus is not None
    ]  # fmt: skip
    if rows:
        titles = ["experiment", "A", "B", "B against A"]
        yield html.table("Two sides, measured in turns", titles, rows, style="words", is_html=True)


def _with_labels(line: str, labels: Sequence[str], total: int) -> str:
    """Prefix a line with the experiments that it is about, unless it is about all of them."""
    return line if len(labels) == total else f"{'; '.join(labels[:4])}{' and others' * (len(labels) > 4)}: {line}"


def _standing_row(standing: Standing, provider: str, texts: Sequence[str], is_doubted: bool) -> list[str]:
    cells = [safe(provider) + ("<small>has doubts, not compared</small>" if is_doubted else "")]
    for key, text in zip(standing.keys, texts, strict=True):
        shown = f'<span class="best">{safe(text.strip())}</span>' if text.endswith(BEST) else safe(text.strip())
        difference = standing.distances.get(key, ("", {}))[1].get(provider)
        cells.append(f"{shown}<small>{safe(_format_distance(key, difference))}</small>" if difference else shown)
    return cells


def _format_distance(key: str, difference: Distance) -> str:
    """Return a difference and its interval: ``+38 % (31 to 46)``, or in points for fractions."""
    low, high = sorted((difference.low, difference.high))
    unit = "points" if difference.is_points else "%"
    if not difference.is_points and METRICS[key].better == "lower" and difference.low > 1:
        return f"{format_number(1 + difference.value)} x ({format_number(1 + low)} to {format_number(1 + high)})"
    sign = "+" if difference.value >= 0 else ""
    return (
        f"{sign}{format_number(difference.value * 100)} {unit} "
        f"({format_number(low * 100)} to {format_number(high * 100)})"
    )


def _render_footer() -> str:
    return (
        f"<footer><p>Made by pytest-cloudbench {escape(__version__)}. p50, p95, p99: half, 95 %, 99 % of the "
        "operations that succeeded took at most this long, counted from when they were due. A dash is not known; it is "
        "never zero. Curves are drawn from classes 1 % wide; percentiles in tables and captions are exact.</p></footer>"
    )
