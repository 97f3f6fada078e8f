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
            caption="Small regions are known well. A distant one explains a long delay (IMC, section 3.2, Figure 2).",
            table="imc-2013-data-centers",
            published=(
                ("Dropbox, control: San Jose", 37.34, -121.89),
                ("Dropbox, storage: Northern Virginia", 38.9, -77.5),
                ("Cloud Drive: Northern Virginia", 38.9, -77.5),
                ("Cloud Drive: Ireland", 53.4, -8.0),
                ("Cloud Drive, storage: Oregon", 44.0, -120.5),
                ("SkyDrive, storage: Seattle", 47.61, -122.33),
                ("SkyDrive: Southern Virginia", 37.0, -78.5),
                ("SkyDrive, control: Singapore", 1.35, 103.82),
                ("Wuala, two: Nuremberg", 49.45, 11.08),
                ("Wuala: Zurich", 47.38, 8.54),
                ("Wuala: Northern France", 49.9, 2.5),
            ),
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
