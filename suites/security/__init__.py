"""Is what it stores safe from others: on the way, at the service, behind links, and after it was deleted?"""

from __future__ import annotations

from pytest_cloudbench import Answers, Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "security",
    figures=(
        Answers("test_*", "thesis-2014-table-2.1", "Security: as measured, and as advertised in 2014", "question"),
    ),
    conclusions={
        "is_secure": Metric("1 is yes", better="higher"),
        "link_closed_s": Metric("s", time_like=True),
        "link_late_s": Metric("s", time_like=True),
        "member_refused_s": Metric("s", time_like=True),
    },
    columns={"advertised_2014": "as advertised 2014"},
)
