"""The figures of one run for each host that carried its agents."""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.judge.metrics import summarize
from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.judge.ranking import spread_of
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Outcome

_METRICS = (
    "ok_rate", "throttled_rate", "failed_rate", "corrupt_rate", "service_p50", "service_p99", "response_p50",
    "response_p95", "response_p99", "first_byte_p50", "lateness_p50", "lateness_p99", "throughput", "ops_per_s",
    "requests_per_op",
)  # fmt: skip


def figures_by_host(table: OpTable, since_ns: int | None, waits: WaitSeries | None = None) -> dict[str, Any]:
    """Return each host's counts, metrics and ``spread`` for ranking, by its name. Empty unless there are several hosts.

    A sensor stays with its agent, so each host has sensors of its own, but of the same kind.

    Args:
        table: all records, their outcomes corrected by the provider's listing.
        since_ns: count only operations that were due at this time or later. None for all.
        waits: see ``metrics.summarize``.
    """
    names = list(dict.fromkeys(table.hosts.values()))
    hosts: dict[str, Any] = {}
    for name in names if len(names) > 1 else ():
        own = table.of_host(name)
        own = own if since_ns is None else own.since(since_ns)
        summary = summarize(own, None, waits)
        hosts[name] = {
            "ops": summary.ops, **{outcome.value: summary.outcomes.get(outcome, 0) for outcome in Outcome},
            **{metric: summary.metrics[metric] for metric in _METRICS}, "spread": spread_of(own, summary.response_s),
        }  # fmt: skip
    return hosts
