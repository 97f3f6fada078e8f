"""Turns captured traffic into flows and numbers: pure functions of a capture file's bytes.

What may live here: the order in which the modules see a capture (``records``: the file; ``packets``, ``headers``,
``tunnels``: headers; ``table``, ``flows``, ``counts``, ``sequence``, ``resent``, ``replies``: connections;
``handshake``, ``streams``: payload; ``facts``, ``roles``, ``owners``, ``metrics``: meaning; ``lines``, ``analysis``:
everything together). No file is opened here. Bulk numbers never come from another program; docs/traffic.md says why.
"""

from pytest_cloudbench.net.traffic.analysis import Analysis, Validity, analyze
from pytest_cloudbench.net.traffic.facts import FlowFacts
from pytest_cloudbench.net.traffic.owners import Sorted, Whose
from pytest_cloudbench.net.traffic.roles import Rule, parse_rules
from pytest_cloudbench.net.traffic.table import Flow, FlowTable, Side

__all__ = [
    "Analysis", "Flow", "FlowFacts", "FlowTable", "Rule", "Side", "Sorted", "Validity", "Whose", "analyze",
    "parse_rules",
]  # fmt: skip
