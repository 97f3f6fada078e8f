"""What does a sync client do to save traffic and time? (IMC 2013, sections 4.1 to 4.6, and thesis, section 4.2.6)

``--client`` names the client. It and its server run here, in two network namespaces with a link between them, and every
byte on it is captured. docs/method/verdicts.md explains each verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import CAPABILITIES, MIB, Observation, Step

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem

IMC = "Benchmarking personal cloud storage, IMC 2013"
TABLE_1 = {
    "chunking": ("Chunking", "all but Cloud Drive"),
    "bundling": ("Bundling", "Dropbox"),
    "compression": ("Compression", "Dropbox, Google Drive"),
    "deduplication": ("Deduplication", "Dropbox, Wuala"),
    "delta": ("Delta-encoding", "Dropbox"),
}
"""The name of each capability in Table 1, and those of its five services (Dropbox, SkyDrive, Wuala, Google Drive, Cloud
Drive) that have it."""

THESIS = "BenchCloud thesis, section 4.2.6, 2014, Dropbox 2.6.33"
IDLE = Step("idle", duration_s=1.5)

FIGURE_3_FILES = {"quick": (1, 100), "paper": (1, 10, 100, 1000)}
FIGURE_3_BYTES = 1_000_000

FIGURE_4 = {
    "quick": (("end", 1 * MIB), ("random", 10 * MIB)),
    "paper": tuple(("end", size * MIB // 2) for size in range(1, 5))
    + tuple(("random", size * MIB) for size in range(2, 11, 2)),
}
FIGURE_4_BYTES = 100_000

FIGURE_5_SIZES = {"quick": (1_000_000,), "paper": (100_000, 500_000, 1_000_000, 1_500_000, 2_000_000)}
FIGURE_5_KINDS = {"text": "text", "random": "big", "fake_jpeg": "fake_jpeg"}

FIGURE_4_8_MB = {"quick": (1, 10), "paper": (1, 10, 100, 300, 500)}
FIGURE_4_10_PERCENT = {"quick": (50,), "paper": (10, 30, 50, 70, 90)}
FIGURE_4_10_VERSIONS = {"quick": 2, "paper": 5}
FIGURE_4_10_MB = {"quick": 2, "paper": 10}
TABLE_4_7 = {"quick": (("2 MB", 3),), "paper": (("20 MB", 3),)}
TABLE_4_7_MB = {("20 MB", 3): 25.58}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the ``quick`` grid, or with the papers' own."""
    grid = metafunc.config.option.cloudbench_grid
    parameters: dict[str, Sequence[Any]] = {
        "files": FIGURE_3_FILES[grid],
        "content": tuple(FIGURE_5_KINDS),
        "size_bytes": FIGURE_5_SIZES[grid],
        "size_mb": FIGURE_4_8_MB[grid],
        "percent": FIGURE_4_10_PERCENT[grid],
    }
    names = metafunc.fixturenames
    if metafunc.function.__name__ == "test_table_4_7":
        metafunc.parametrize("size, files", TABLE_4_7[grid], ids=lambda value: str(value).replace(" ", ""))
        return
    if "where" in names:
        metafunc.parametrize("where, size_bytes", FIGURE_4[grid])
        return
    for name, values in parameters.items():
        if name in names:
            metafunc.parametrize(name, values)


def test_table_1(lab: LabItem) -> None:
    """Table 1 and sections 4.1 to 4.5: chunking, bundling, deduplication, delta encoding and compression."""
    results = []
    verdicts = lab.examine()
    for capability in CAPABILITIES:
        verdict, (name, printed) = verdicts[capability], TABLE_1[capability]
        value = {"yes": 1, "no": 0}.get(verdict.answer)
        results.append(
            lab.conclude(
                {capability: value},
                rounds_s=[max(verdict.confidence, 1e-9)],
                stats_of="confidence: distance of the deciding number from its bound, 0 to 1",
                columns=("answer", "how", "confidence", "imc_2013_yes"),
                label=name,
                params={"capability": name, "service": lab.spec},
                extra={
                    capability: verdict.answer, "answer": verdict.answer, "how": verdict.detail,
                    "confidence": verdict.confidence, "evidence": list(verdict.evidence),
                    "numbers": dict(verdict.numbers), "has_capability": value, "imc_2013_yes": printed,
                },
                published={"source": f"{IMC}, Table 1", "has_capability": printed},
            )
        )  # fmt: skip
    for result in results:
        result.check()


def test_figure_3(lab: LabItem, files: int) -> None:
    """Section 4.2 and Figure 3: the same bytes in more and more files. The figure counts SYNs of 100 files of 10 kB."""
    kind = "few" if files <= 10 else "many"
    idle, observation = lab.measure([IDLE, Step(kind, FIGURE_3_BYTES, files)])
    syns = {100: "Google Drive 100, Cloud Drive 400"}.get(files, "-")
    extra = {
        "syns": observation.syns,
        "exchanges": observation.exchanges,
        "bursts": observation.bursts,
        "imc_2013_syns": syns,
    }
    columns = ("syns", "exchanges", "bursts", "completion_s", "tue", "imc_2013_syns")
    _conclude(lab, [idle, observation], columns, extra, {"source": f"{IMC}, Figure 3", "syns": syns})


def test_figure_4(lab: LabItem, where: str, size_bytes: int) -> None:
    """Section 4.4 and Figure 4: the bytes sent when 100 kB are added to a file, at its end or at a random place."""
    edit = Step("append" if where == "end" else "spliced", FIGURE_4_BYTES)
    idle, _, observation = lab.measure([IDLE, Step("new", size_bytes - FIGURE_4_BYTES), edit])
    drawn = "drawn only: Dropbox near the added 100 kB, the others near the file; Wuala less by chunks that stay"
    extra = {
        "uploaded_mb": observation.up_bytes / 1e6,
        "file_mb": observation.size_bytes / 1e6,
        "imc_2013": "drawn only",
    }
    columns = ("file_mb", "uploaded_mb", "tue", "imc_2013")
    _conclude(lab, [idle, observation], columns, extra, {"source": f"{IMC}, Figure 4", "uploaded": drawn})


def test_figure_5(lab: LabItem, content: str, size_bytes: int) -> None:
    """Section 4.5 and Figure 5: text, random bytes, and words that pretend to be a JPEG image."""
    idle, observation = lab.measure([IDLE, Step(FIGURE_5_KINDS[content], size_bytes)])
    drawn = {
        "text": "drawn only: Dropbox and Google Drive send less than the file",
        "random": "drawn only: all send the file, Dropbox most beside it",
        "fake_jpeg": "drawn only: Dropbox sends less, Google Drive does not",
    }[content]
    zlib_mb = None if observation.zlib_bytes is None else observation.zlib_bytes / 1e6
    extra = {"uploaded_mb": observation.up_bytes / 1e6, "zlib_mb": zlib_mb, "imc_2013": drawn.partition(": ")[2]}
    columns = ("uploaded_mb", "zlib_mb", "tue", "imc_2013")
    _conclude(lab, [idle, observation], columns, extra, {"source": f"{IMC}, Figure 5", "uploaded": drawn})


def test_figure_4_8(lab: LabItem, size_mb: int) -> None:
    """Thesis, Figure 4.8: sparse files of 1 to 500 MB made almost the same traffic (to within 3.6 KB)."""
    idle, observation = lab.measure([IDLE, Step("sparse", size_mb * 1_000_000)])
    extra = {"file_mb": size_mb, "thesis": "the same for all sizes"}
    published = {"source": f"{THESIS}, Figure 4.8", "traffic": "drawn only; largest less smallest is 3.6 KB"}
    _conclude(lab, [idle, observation], ("file_mb", "traffic_mb", "tue", "thesis"), extra, published)


def test_figure_4_10(lab: LabItem, grid: str, percent: int) -> None:
    """Thesis, Figures 4.9 and 4.10: versions of a file with a common part, which delta encoding sends only once."""
    size, versions = FIGURE_4_10_MB[grid] * 1_000_000, FIGURE_4_10_VERSIONS[grid]
    version = Step("version", share=percent / 100)
    idle, *observations = lab.measure([IDLE, Step("new", size), *[version] * (versions - 1)])
    expected_mb = size * (percent + versions * (100 - percent)) / 100 / 1e6
    extra = {"versions": versions, "whole_mb": versions * size / 1e6, "delta_encoded_mb": expected_mb}
    published = {"source": f"{THESIS}, Figure 4.10", "traffic": "drawn only, beside the traffic with delta encoding"}
    _conclude(lab, [idle, *observations], ("versions", "whole_mb", "delta_encoded_mb", "traffic_mb"), extra, published)


def test_table_4_7(lab: LabItem, size: str, files: int) -> None:
    """Thesis, Table 4.7: files of the same content, one after another. Three of 20 MB took 25.58 MB of traffic."""
    bytes_each = int(size.partition(" ")[0]) * 1_000_000
    idle, *observations = lab.measure([IDLE, Step("new", bytes_each), *[Step("copy")] * (files - 1)])
    printed = TABLE_4_7_MB.get((size, files))
    extra = {"whole_mb": files * bytes_each / 1e6, "published_mb": printed}
    published = {"source": f"{THESIS}, Table 4.7", "traffic_mb": printed}
    _conclude(lab, [idle, *observations], ("whole_mb", "traffic_mb", "published_mb"), extra, published)


def _conclude(
    lab: LabItem,
    observations: Sequence[Observation],
    columns: Sequence[str],
    extra: dict[str, Any],
    published: dict[str, Any],
) -> None:
    """Store one entry for the phases after an idle one: traffic both ways, minus that of the idle client."""
    idle, *phases = observations
    duration_s = sum(phase.duration_s for phase in phases)
    known_bytes = [phase.wire_bytes for phase in phases if phase.wire_bytes is not None]
    traffic_bytes: float | None = None
    doubts = list[str]()
    if idle.wire_bytes is not None and len(known_bytes) == len(phases):
        traffic_bytes = sum(known_bytes) - idle.wire_bytes / idle.duration_s * duration_s
        if traffic_bytes <= 0:
            traffic_bytes = None
            doubts.append("the idle client sent as much in this time, so the changes' share is not known")
    changed = sum(phase.changed_bytes for phase in phases)
    metrics = {
        "tue": None if traffic_bytes is None else traffic_bytes / changed,
        "traffic_mb": None if traffic_bytes is None else traffic_bytes / 1e6,
    }
    common = {
        "completion_s": phases[-1].completion_s, "start_up_s": phases[-1].start_up_s, "changed_bytes": changed,
        "cpu_s": phases[-1].cpu_s,
    }  # fmt: skip
    rounds_s = [phase.duration_s for phase in phases]
    result = lab.conclude(
        metrics, rounds_s, stats_of="time from the change until in sync and quiet", columns=columns,
        extra={**common, **extra}, published=published, doubts=doubts,
    )  # fmt: skip
    lab.settle([result])
