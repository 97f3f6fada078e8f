"""Who runs the servers of a provider or of a sync client, where are they, and is content stored there?"""

from __future__ import annotations

from pytest_cloudbench import Metric, Suite, WorldMap

CLOUDBENCH_SUITE = Suite(
    "datacenters",
    figures=(
        WorldMap(
            test="test_*",
            places="places",
            title="Where the servers are",
            told="Small regions are known well. One far from you explains a long delay (IMC, section 3.2, Figure 2).",
            table="imc-2013-data-centers",
        ),
    ),
    conclusions={
        "server_rtt": Metric("s", time_like=True),
        "first_byte_behind": Metric("s", time_like=True),
        "located_share": Metric("fraction", better="higher"),
    },
    columns={
        "contacted_servers": "servers",
        "contacted_names": "names",
        "place": "location",
        "round_trip_ms": "round trip ms",
        "layer": "edge or storage",
    },
)
