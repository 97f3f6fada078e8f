"""Is what a provider stores safe from others? (thesis, section 2.2 and Table 2.1, and section 5.2)

Each answer is yes, no or unknown, and rests on what was seen. Only the user's own account is asked, and only in a
folder of this run: its own files, links and connections. docs/suites/security.md says how each question is asked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import CloudbenchError, CloudError, Inquiry, inquire, now_ns

from .nodes import shows_nodes
from .questions import NODES, QUESTIONS, SERVICES, SOURCE, Question
from .rulings import Ruling, unknown

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads

COLUMNS = ("answer", "how", "advertised_2014")


@pytest.mark.parametrize("question", [pytest.param(title, id=row.name) for title, row in QUESTIONS.items()])
def test_table_2_1(experiment: Experiment, payloads: Payloads, question: str, pytestconfig: pytest.Config) -> None:
    """Table 2.1 as measured, beside what was advertised in 2014."""
    row = QUESTIONS[question]
    if row.option:
        value = pytestconfig.getoption(f"cloudbench_security_{row.option}")
        row = row._replace(ask=partial(row.ask, **{row.option: value}))
    ask_and_conclude(experiment, payloads, row)


@pytest.mark.parametrize("question", [pytest.param(NODES.title, id=NODES.name)])
def test_section_2_3(experiment: Experiment, payloads: Payloads, question: str) -> None:
    """Section 2.3: the loss of storage nodes, for an array or a grid whose nodes can be killed here."""
    assert question == NODES.title
    if not shows_nodes(experiment.provider):
        pytest.skip(f"{experiment.provider.spec} shows no nodes; try --provider raid:six or local:tahoe")
    ask_and_conclude(experiment, payloads, NODES)


def ask_and_conclude(experiment: Experiment, payloads: Payloads, row: Question) -> None:
    """Ask a question, and store its answer as an entry."""
    answer = inquire(experiment, payloads.random(1), partial(ask_safely, row))
    ruling, advertised = Ruling.from_plain(answer), row.printed.get(answer["service"], "-")
    is_secure = None if ruling.answer == "unknown" else int(ruling.answer == row.is_good)
    experiment.conclude(
        {"is_secure": is_secure, **ruling.numbers},
        [answer["asked_s"]],
        stats_of="time that asking took",
        columns=COLUMNS,
        extra={
            "asks": row.asks, "answer": ruling.answer, "how": ruling.how, "evidence": list(ruling.evidence),
            "is_yes": {"yes": 1, "no": 0}.get(ruling.answer), "good_answer": row.is_good,
            "advertised_2014": advertised,
        },
        published={"source": SOURCE, "advertised": advertised} if advertised != "-" else {},
    ).check()  # fmt: skip


def ask_safely(row: Question, inquiry: Inquiry) -> dict[str, Any]:
    """Ask a question. Any error makes the answer unknown, and never yes or no."""
    began_ns = now_ns()
    try:
        ruling = row.ask(inquiry)
    except CloudError as error:
        ruling = unknown(f"asking failed: {error.operation}: {error.kind.value}", [str(error)])
    except (CloudbenchError, OSError) as error:
        ruling = unknown(f"asking failed: {type(error).__name__}", [str(error)])
    service = SERVICES.get(inquiry.bound.spec.scheme, "")
    return {**ruling.plain(), "service": service, "asked_s": max((now_ns() - began_ns) / 1e9, 1e-9)}
