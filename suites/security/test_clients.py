"""Is what a sync client sends, stores and keeps safe from others? (thesis, section 2.2 and Table 2.1)

``--client`` names the client. It and its server run here, with a link between them that is captured. It is led to wrong
servers too, with invented content. docs/suites/security.md says how each question is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pytest_cloudbench import now_ns

from . import certificates, clients, shared_server
from .authority import CERTIFICATE_FAULTS, GOOD, NOT_REVOKED, REVOCATION_FAULTS
from .clients import Observed
from .doors import OLD_TLS, TO_PLAIN
from .rulings import Ruling

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem

COLUMNS = ("answer", "how")
_OBSERVED: dict[str, Observed] = {}
"""The observations of each client, which all questions about it share."""


class ClientQuestion(NamedTuple):
    """A question to a client, and the function that judges its observations or its visits to doors."""

    name: str
    title: str
    judge: Callable[..., Ruling] | None = None
    judge_visits: Callable[..., Ruling] | None = None
    faults: tuple[str, ...] = ()
    is_good: str = "yes"
    option: str = ""


QUESTIONS = {
    question.title: question
    for question in (
        ClientQuestion("tls", "TLS", clients.judge_transit),
        ClientQuestion("device_tls", "TLS to a second device", clients.judge_device),
        ClientQuestion(
            "certificate", "Certificate checked", None, certificates.judge_certificates, (GOOD, *CERTIFICATE_FAULTS)
        ),
        ClientQuestion(
            "revocation", "Revoked certificate refused", None, certificates.judge_revocation,
            (NOT_REVOKED, *REVOCATION_FAULTS),
        ),
        ClientQuestion("old_tls", "TLS 1.0 and 1.1 refused", None, certificates.judge_old_tls, (GOOD, OLD_TLS)),
        ClientQuestion(
            "redirect", "Redirect to plain HTTP refused", None, certificates.judge_redirect, (TO_PLAIN,)
        ),
        ClientQuestion("content", "File encryption", clients.judge_content),
        ClientQuestion("names", "File meta data encrypted?", clients.judge_names),
        ClientQuestion(
            "operator", "System operator able to access the content of users' files?", clients.judge_operator,
            is_good="no",
        ),
        ClientQuestion("equal", "Equal files look different", clients.ask_equal),
        ClientQuestion(
            "deduplication", "Deduplication across users leaks", shared_server.ask_deduplication, is_good="no",
            option="copies",
        ),
        ClientQuestion("at_rest", "Unreadable where stored", clients.judge_at_rest),
        ClientQuestion("secrets", "Credentials kept private", clients.judge_secrets),
    )
}  # fmt: skip


@pytest.mark.parametrize("question", [pytest.param(title, id=row.name) for title, row in QUESTIONS.items()])
def test_table_2_1(lab: LabItem, question: str, pytestconfig: pytest.Config) -> None:
    """Table 2.1 as measured, for a sync client."""
    row, began_ns = QUESTIONS[question], now_ns()
    if row.judge_visits is not None:
        ruling = row.judge_visits(clients.visit_with(lab.spec, row.faults))
    else:
        assert row.judge is not None
        if lab.spec not in _OBSERVED:
            _OBSERVED[lab.spec] = clients.observe(lab)
        option = row.option
        options = {option: pytestconfig.getoption(f"cloudbench_security_{option}")} if option else {}
        ruling = row.judge(_OBSERVED[lab.spec], **options)
    is_secure = None if ruling.answer == "unknown" else int(ruling.answer == row.is_good)
    lab.conclude(
        {"is_secure": is_secure},
        [max((now_ns() - began_ns) / 1e9, 1e-9)],
        stats_of="time that asking took",
        columns=COLUMNS,
        extra={
            "answer": ruling.answer, "how": ruling.how, "evidence": list(ruling.evidence),
            "is_yes": {"yes": 1, "no": 0}.get(ruling.answer), "good_answer": row.is_good,
        },
    ).check()  # fmt: skip
