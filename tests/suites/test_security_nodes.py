"""An array whose nodes are killed is whole, and one whose repair does nothing is found."""

from __future__ import annotations

import pytest

from pytest_cloudbench import Inquiry, ProviderSpec, open_provider
from suites.security import nodes

pytest.importorskip("numpy", reason="an array needs the raid extra")


@pytest.mark.slow
def test_an_array_survives_what_it_promises() -> None:
    ruling = nodes.try_losses(ProviderSpec.parse("raid:six"))
    assert (ruling.answer, ruling.how) == ("yes", "read with 2 of 6 nodes killed, and after a repair with 2 others")
    assert ruling.evidence[0] == "1 of 6 nodes killed: read, not written"
    assert ruling.evidence[-1] == "3 nodes killed: not read"


@pytest.mark.slow
def test_a_repair_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "note_all_missing", lambda array, child: 0)
    ruling = nodes.try_losses(ProviderSpec.parse("raid:six"))
    assert (ruling.answer, ruling.how) == ("no", "it survives 2 of 6 nodes, but is not whole after a repair")


def test_a_service_that_shows_no_nodes_is_not_judged() -> None:
    with open_provider("emulated:ideal") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        assert nodes.ask_nodes(inquiry).answer == "unknown"
