"""Pure functions that turn the bytes of a capture file into flows and numbers.

The modules in the order in which they process a capture: ``records`` and ``interfaces`` read the file. ``packets``,
``headers`` and ``tunnels`` read headers. ``table``, ``flows``, ``counts``, ``sequence``, ``verdicts``, ``resent`` and
``replies`` handle connections, and ``datagrams`` counts UDP. ``handshake`` and ``streams`` read payload. ``facts``,
``roles``, ``owners`` and ``metrics`` interpret flows, and ``lines`` and ``analysis`` combine everything. No file is
opened here. Bulk numbers never come from another program (docs/method/traffic.md).
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
