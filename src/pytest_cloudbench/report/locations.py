"""Printed form of ``cloudbench locate``: a line for each name, and what was left out and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_cloudbench.net.locate.placing import Location, find_suspect_vantage
from pytest_cloudbench.net.locate.survey import MOST_ADDRESSES, ServerSurvey, collect_evidence
from pytest_cloudbench.report.columns import fit_to_width
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

_COLUMNS = ("name", "servers", "operator", "place", "known by")


@dataclass(frozen=True, slots=True)
class NameLine:
    """The line of the table about one name. If its servers differ in a value, all their values are named."""

    name: str
    servers: str
    operator: str
    place: str
    known_by: str


def summarize_names(survey: ServerSurvey, locations: Mapping[str, Location]) -> list[NameLine]:
    """Return a line for each name. Where its servers differ, each value is named once."""
    lines = []
    for name, record in survey.names.items():
        rows = [locations[address] for address in record.addresses if address in locations]
        operators = dict.fromkeys(row.operator or "unknown" for row in rows)
        places = dict.fromkeys(row.place for row in rows)
        reasons = dict.fromkeys(_shorten(row.by) for row in rows)
        operator, place = " or ".join(operators) or "unknown", " or ".join(places) or "unknown"
        lines.append(NameLine(name, str(len(rows)), operator, place, "; ".join(reasons) or "no address"))
    return lines


_SHORT = (
    ("operator's name of the server, allowed by", "server's name,"),
    ("operator's published region, allowed by", "region,"),
    ("operator's published region, not confirmed", "region, not confirmed"), ("round trips from", "round trips,"),
    ("vantage point", "point"),
)  # fmt: skip


def _shorten(reason: str) -> str:
    """Return a reason that fits into a column. The full reason is in the JSON, and in a remark if it matters."""
    short = reason.partition(":")[0].partition(";")[0].partition(" (")[0]
    for text, shorter in _SHORT:
        short = short.replace(text, shorter)
    return short


def format_names(lines: Sequence[NameLine], width: int) -> list[str]:
    """Return the lines of a table that is at most ``width`` wide. Longer texts continue below, in their column."""
    rows = [(line.name, line.servers, line.operator, line.place, line.known_by) for line in lines]
    return fit_to_width([_COLUMNS, *(tuple(map(printable, row)) for row in rows)], width)


def format_remarks(
    survey: ServerSurvey, locations: Mapping[str, Location], left_out: Mapping[str, str]
) -> Iterator[str]:
    """Yield lines about why a place is unknown, what does not count, and hints, each once."""
    for name, record in survey.names.items():
        rows = [locations[address] for address in record.addresses if address in locations]
        for layer in dict.fromkeys((row.layer, row.layer_by) for row in rows if row.layer_by):
            yield f"{name}: edge or storage: {layer[0]}: {layer[1]}"
        for reason in dict.fromkeys(row.by for row in rows if row.place == "unknown" or "excluded" in row.by):
            yield f"{name}: {reason}"
    for resolver, problem in survey.resolvers.items():
        yield f"resolver {resolver} does not count: {problem}"
    reasons = {name: reason for row in locations.values() for name, reason in row.left_out.items()}
    for name, reason in {**reasons, **left_out}.items():
        yield f"{name} does not count: {reason}"
    if suspect := find_suspect_vantage(collect_evidence(survey, lambda address: None)[0]):
        yield f"{suspect} contradicts all others: is it where it is said to be? Anycast with several addresses looks so"
    for hint in dict.fromkeys(hint for row in locations.values() for hint in row.hints):
        yield f"a hint, which proves nothing: {hint}"
    for problem in dict.fromkeys(row.problem for row in survey.owners.values() if row.problem):
        yield f"owner unknown: {problem}"
    if skipped := survey.skipped_addresses:
        count = len(survey.addresses)
        yield f"{len(skipped):,} of {count:,} addresses were not measured: a survey asks about {MOST_ADDRESSES} at most"
    if any(record.heeds_subnets for record in survey.names.values()):
        yield "answers depend on the client's network"
    yield from format_phases(survey)


def format_phases(survey: ServerSurvey) -> Iterator[str]:
    """Yield how many names and servers were contacted in each phase, if phases are known."""
    phases = dict.fromkeys(phase for record in survey.names.values() for phase in record.phases)
    for phase in phases:
        inside = [record for record in survey.names.values() if phase in record.phases]
        servers = {address for record in inside for address in record.addresses}
        yield f"{phase}: {format_count(len(inside), 'name')}, {format_count(len(servers), 'server')}"
