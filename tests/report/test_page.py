"""A page of stored runs: its content, one line for each omission, and no markup from names."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.report import html
from pytest_cloudbench.report.digest import digest_records
from pytest_cloudbench.report.gathering import gather_runs
from pytest_cloudbench.results.oplog import read_parquet, write_parquet
from tests.report.stored import HOSTILE, entry, operations, store

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEST = "suites/iot/test_iot.py::test_worst_case"
T = TypeVar("T")
VOID = {"meta", "br", "input", "link", "img", "hr"}


class Page(HTMLParser):
    """A page that is parsed into elements. A wrongly closed tag fails the test."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.open, self.ids = text, list[str](), list[str]()
        self.links, self.named, self.tags, self.words = list[str](), list[str](), list[str](), list[str]()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        assert not any(name.startswith("on") for name in attributes), attributes
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if "href" in attributes else []
        self.named += attributes.get("aria-labelledby", "").split()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def plain_text(self) -> str:
        return " ".join(" ".join(self.words).split())


def make_page(tmp_path: Path, *runs: Path) -> Page:
    out = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "-o", str(out)]) == 0
    return Page(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page of two providers with malicious names. One of the providers throttles and freezes."""
    folder = tmp_path_factory.mktemp("stored")
    broken = "loss_rate <= 0.01 (a source, 2026): broken, measured 0.1"
    entries = [
        entry(folder, TEST, "emulated:ideal", list(operations(400, 30)), {"sensors": 50, "interval_s": 1},
              expectations=["ok_rate >= 0.9 (a source, 2026): met, measured 1"], statuses=["met"]),
        entry(folder, TEST, "folder:/x", list(operations(400, 90, throttled=10, frozen_at=200)),
              {"sensors": 50, "interval_s": 1}, emulated=False, expectations=[broken], expectations_unmet=[broken],
              statuses=["broken"], doubts=["engine saturated"], outcome="failed",
              error_details={"throttled": {"count": 40, "said": [{"detail": HOSTILE, "count": 40}]}}),
        entry(folder, f"tests/test_{HOSTILE}.py::test_it", f"folder:/{HOSTILE}", list(operations(50, 10)),
              {HOSTILE: HOSTILE}, machine=HOSTILE, notes=[HOSTILE]),
        entry(folder, TEST.replace("worst", "average"), "emulated:ideal", (), {"sensors": 3}, response_p50=float("nan"),
              ops_file="run/gone.parquet"),
    ]  # fmt: skip
    return make_page(folder, store(folder / "0001_r.json", entries))


@pytest.mark.parametrize(
    ("params", "label"), [({"a": 20, "b": -5}, "20, -5"), ({"a": -5, "b": "x"}, "-5, x"), ({"a": 1}, "1")]
)
def test_a_negative_parameter_keeps_its_sign(params: dict[str, object], label: str, tmp_path: Path) -> None:
    path = store(tmp_path / "0001_run.json", [entry(tmp_path, TEST, "emulated:ideal", params=params)])
    assert gather_runs([path]).measurements[0].label == label


def test_a_file_that_is_left_out_does_nothing_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    store(folder / "Linux" / "0001_run.json", [entry(folder, TEST, "emulated:ideal")])
    (folder / "Linux" / "0002_\x1b[31m.json").write_text("{")
    make_page(tmp_path, folder)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("left out: ")
    assert "0002_\\x1b[31m.json: is not JSON" in out[0]
    assert len(out) == 2


@pytest.mark.parametrize("outcome", ["interrupted", "unfinished"])
def test_what_an_interrupted_test_measured_is_in_doubt(outcome: str, tmp_path: Path) -> None:
    entries = [entry(tmp_path, TEST, "emulated:ideal", list(operations(50, 30)), outcome=outcome)]
    page = make_page(tmp_path, store(tmp_path / "0001_run.json", entries))
    assert f"these numbers may be wrong the test was {outcome}:" in page.plain_text
    assert "1 ? with doubts" in page.plain_text


def test_page_is_one_document_without_network(page: Page) -> None:
    assert page.text.startswith("<!doctype html>")
    assert page.tags.count("h1") == 1
    assert "default-src 'none'" in page.text
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page.text)


def test_links_have_targets_and_ids_are_unique(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    inside = [link[1:] for link in page.links if link.startswith("#")]
    assert len(inside) > 8
    assert set(inside) <= set(page.ids)
    assert set(page.named) <= set(page.ids)


def test_sections_are_in_order(page: Page) -> None:
    order = ["What was measured on what", "What is good and bad", "Providers side by side", "iot: worst case"]
    positions = [page.plain_text.rindex(title) for title in order]
    assert positions == sorted(positions)
    assert "Some of it is emulated" in page.plain_text
    assert "engine saturated" in page.plain_text
    assert "\u2717 broken" in page.plain_text
    assert "1 \u2713 met" in page.plain_text


def test_hostile_names_are_escaped(page: Page) -> None:
    assert page.tags.count("script") == 1
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text
    assert "<script>alert(1)</script>" in page.plain_text


def test_throttling_and_freeze_are_drawn_and_described(page: Page) -> None:
    assert 'class="o-throttled"' in page.text
    assert 'class="silence"' in page.text
    assert "360 succeeded, 40 throttled" in page.plain_text
    assert "Once nothing ended although operations waited; the longest lasted 2" in page.plain_text
    assert "No time in which nothing ended although operations waited" in page.plain_text  # of the others


def test_missing_values_are_explained_and_not_zero(page: Page) -> None:
    assert "not drawn" in page.plain_text
    assert "gone.parquet: cannot be read: No such file" in page.plain_text
    row = next(cell for cell in re.findall(r"<tr>.*?</tr>", page.text) if '"row">3<' in cell and "ideal" in cell)
    row = re.sub(r' (class|data-label)="[^"]*"', "", row)
    assert "<td>-<" in row
    assert "<td>nan<" not in row


def csv_files(page: Page) -> list[str]:
    """Return the numbers of the page's figures as CSV, which its script offers as files."""
    return [unescape(text) for text in re.findall(r'<pre tabindex="0">(.*?)</pre>', page.text, re.DOTALL)]


def test_figures_have_their_numbers_as_csv(page: Page) -> None:
    files = csv_files(page)
    assert len(files) == page.tags.count("figure")
    first = list(csv.DictReader(io.StringIO(files[0])))
    medians = next(row for row in first if row["share"] == "0.5")
    assert float(medians["emulated:ideal, s"]) == pytest.approx(0.034, rel=0.05)
    assert float(medians["folder:/x, s"]) == pytest.approx(0.105, rel=0.05)
    assert not any(cell.startswith(("=", "+", "@")) for text in files for row in csv.reader(io.StringIO(text))
                   for cell in row)  # fmt: skip


def test_figures_have_title_and_description(page: Page) -> None:
    drawings = re.findall(r"<svg role=\"img\".*?</svg>", page.text, re.DOTALL)
    assert len(drawings) >= 5
    assert len(drawings) == page.tags.count("figure")
    for drawing in drawings:
        title, description = re.findall(r'aria-labelledby="(\S+) (\S+)"><title id="', drawing)[0]
        assert f'<title id="{title}">' in drawing
        assert re.search(f'<p id="{description}">[^<]', page.text)


def test_unusable_files_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = store(tmp_path / "0001_a.json", [entry(tmp_path, TEST, "emulated:ideal", list(operations(30, 10)))])
    torn = tmp_path / "0002_torn.json"
    torn.write_text(good.read_text()[:500])
    newer = store(tmp_path / "0003_newer.json", [entry(tmp_path, TEST, "emulated:ideal", schema=99)])
    foreign = store(tmp_path / "0004_other.json", [{"fullname": "x", "extra_info": {}}])
    odd = tmp_path / "0005_odd.json"
    odd.write_text(json.dumps([1]))
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    output = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert [next(path.name for path in (torn, newer, foreign, odd) if str(path) in line) for line in output] == [
        "0002_torn.json", "0003_newer.json", "0004_other.json", "0005_odd.json"
    ]  # fmt: skip
    page = Page((tmp_path / "page.html").read_text())
    assert "Left out" in page.plain_text
    assert page.plain_text.count("0002_torn.json") == 1


def test_runs_are_selected_as_in_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in ((1, "before"), (2, "after")):
        output = entry(tmp_path, TEST, "emulated:ideal", sensors=number)
        (tmp_path / "results" / "machine").mkdir(parents=True, exist_ok=True)
        store(tmp_path / "results" / "machine" / f"000{number}_{name}.json", [output])
    monkeypatch.chdir(tmp_path)
    for names, expected in (
        (["last"], ["0002_after"]), (["1"], ["0001_before"]), (["0001", "0002_af"], ["0001_before", "0002_after"]),
        (["last", "2", "results/machine/0002_after.json"], ["0002_after"]),
    ):  # fmt: skip
        assert main(["report", *names, "-o", "page.html"]) == 0
        assert f" {len(expected)} run" in capsys.readouterr().out
        pages = Page((tmp_path / "page.html").read_text()).plain_text
        assert [name for name in ("0001_before", "0002_after") if name in pages] == expected
    assert main(["report", "3", "--storage", "results", "-o", "none.html"]) == 4
    assert "run 3: there is no such run in results; the last one is 0002_after" in capsys.readouterr().err
    assert not (tmp_path / "none.html").exists()


def test_nothing_to_show_is_an_error_with_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "no.json"), "-o", str(tmp_path / "page.html")]) == 4
    assert "no.json: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_lead_counts_unknown_claims(tmp_path: Path) -> None:
    line = "loss_rate <= 0.01 (a source, 2026): unknown, engine saturated"
    unknown = entry(tmp_path, TEST, "emulated:a", list(operations(60, 30)), expectations=[line], statuses=["unknown"])
    assert "<b>1</b><span>? unknown</span>" in make_page(tmp_path, store(tmp_path / "0001_r.json", [unknown])).text


def test_records_are_found_in_default_folders(tmp_path: Path) -> None:
    stored_entry = entry(tmp_path / "results" / "Linux", TEST, "emulated:a", list(operations(60, 30)))
    (tmp_path / ".benchmarks" / "Linux").mkdir(parents=True)
    page = make_page(tmp_path, store(tmp_path / ".benchmarks" / "Linux" / "0001_r.json", [stored_entry]))
    assert "60 succeeded" in page.plain_text
    assert "not drawn" not in page.plain_text


def test_equal_test_names_have_distinct_chapters_and_rows(tmp_path: Path) -> None:
    entries = [
        entry(tmp_path, f"{file}.py::test_put", provider, list(operations(60, 30)), {"check": check},
              experiment=f"{file}.py::test_put[{check}]")
        for file in ("test_one", "test_two") for provider in ("emulated:a", "emulated:b")
        for check in ("read_after_write", "after_delete")
    ]  # fmt: skip
    page = make_page(tmp_path, store(tmp_path / "0001_r.json", entries))
    assert ">one: put</h2>" in page.text
    assert ">two: put</h2>" in page.text
    assert "check read after write" in page.plain_text
    assert '<th scope="row"></th>' not in page.text


def test_digest_of_many_records_needs_little_memory(tmp_path: Path) -> None:
    entry(tmp_path, TEST, "emulated:ideal", list(operations(25_000, 30, every_ms=1)))
    path = tmp_path / "run" / "0.parquet"
    summary, peak = trace_memory(lambda: digest_records([path]))
    _, record_bytes = trace_memory(lambda: read_parquet(path))
    assert summary is not None
    assert summary.ops == 25_000
    assert summary.overall.value_at(0.5) == pytest.approx(0.0341, rel=0.01)
    assert peak < record_bytes / 2


def test_operations_of_a_warm_up_are_in_no_figure(tmp_path: Path) -> None:
    warm_up = list(operations(100, 900))
    measured = [op._replace(scheduled_ns=op.scheduled_ns + 10**12, start_ns=op.start_ns + 10**12,
                            end_ns=op.end_ns + 10**12) for op in operations(300, 20)]  # fmt: skip
    path = tmp_path / "records.parquet"
    write_parquet(OpTable.of(warm_up + measured), path, {}, measured[0].scheduled_ns)
    digest = digest_records([path])
    assert digest is not None
    assert (digest.ops, digest.overall.total) == (300, 300)
    assert digest.overall.value_at(1) == pytest.approx(0.0255, rel=0.02)
    assert digest.span_s == pytest.approx(300 * 0.02, rel=0.01)


def test_records_of_the_first_schemas_have_no_warm_up() -> None:
    for schema in (1, 2):
        path = next((FIXTURES / f"results-schema-{schema}").rglob("*.parquet"))
        digest = digest_records([path])
        assert digest is not None
        assert digest.ops == len(read_parquet(path))


@pytest.mark.slow
def test_page_of_half_a_million_operations_is_small(tmp_path: Path) -> None:
    entry(tmp_path, TEST, "emulated:a", list(operations(25_000, 30, every_ms=1, throttled=50, frozen_at=9000)))
    (one,) = (tmp_path / "run").iterdir()
    entries = []
    for number in range(20):
        (tmp_path / "run" / f"same-{number}.parquet").hardlink_to(one)
        entries.append(entry(
            tmp_path, TEST, "emulated:a", params={"sensors": number}, ops=(), ops_file=f"run/same-{number}.parquet",
        ))  # fmt: skip
    page = make_page(tmp_path, store(tmp_path / "0001_r.json", entries))
    assert page.plain_text.count("24,500 succeeded, 500 throttled") >= 20, "all of them are drawn"
    assert len(page.text.encode()) < 5_000_000


def trace_memory(work: Callable[[], T]) -> tuple[T, int]:
    """Return the result of some work and its peak memory."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_only_frozen_run_has_a_silence(tmp_path: Path) -> None:
    entry(tmp_path, TEST, "a", list(operations(500, 40)))
    entry(tmp_path, TEST, "b", list(operations(500, 40, frozen_at=100, frozen_ms=3000)))
    steady, frozen = (digest_records([tmp_path / "run" / f"{number}.parquet"]) for number in (0, 1))
    assert steady is not None
    assert frozen is not None
    assert list(steady.silences) == []
    (silence,) = frozen.silences
    assert silence.from_s == pytest.approx(2.0, abs=0.1)
    assert silence.to_s == pytest.approx(5.0, abs=0.1)
    assert silence.waiting >= 2


@pytest.mark.slow
def test_session_writes_its_page(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pytest_cloudbench.workload.arrival import FixedInterval\n"
        "def test_it(experiment, payloads):\n"
        "    experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=20)\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--provider", f"folder:{tmp_path}/there"]
    argv += ["--benchmark-autosave", "--cloudbench-report", "pages/one.html"]
    (tmp_path / "there").mkdir()

    def session() -> Page:
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "report: pages/one.html" in done.stdout
        return Page((tmp_path / "pages" / "one.html").read_text(encoding="utf-8"))

    page = session()
    assert "40 operations" in page.plain_text
    assert "40 succeeded" in page.plain_text
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["one.html"]
    assert "4 runs under these conditions are needed, found 1" in page.plain_text
    (stored,) = tmp_path.glob("results/*/0001_*.json")
    for number in (2, 3, 4):  # as if it had been run on the days before
        run = json.loads(stored.read_text())
        (extra_info,) = (benchmark["extra_info"] for benchmark in run["benchmarks"])
        extra_info |= {"run_id": f"r{number}", "start_wall_ms": extra_info["start_wall_ms"] - number * 86_400_000}
        stored.with_name(f"000{number}_before.json").write_text(json.dumps(run))
    page = session()
    assert "5 runs under the conditions of this one" in page.plain_text
    assert page.plain_text.count("this page") == 1 + 1  # in the legend, and in the numbers


def test_text_as_metric_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        entry(tmp_path, TEST, "emulated:ideal", (), {"sensors": 3}, response_p50="fast", loss_rate=[1], files={})
    ]
    path = store(tmp_path / "0001_r.json", entries)
    assert "fast" not in make_page(tmp_path, path).plain_text
    (tmp_path / "0002_torn.json").write_text("{")
    make_page(tmp_path, path, tmp_path / "0002_torn.json")
    assert "1 experiment of 1 run," in capsys.readouterr().out.splitlines()[-1]


def test_kinds_of_operations_of_a_mixed_load_have_a_table(tmp_path: Path) -> None:
    kinds = {
        "put": {"ops": 1600, "throttled_rate": 0.25, "failed_rate": 0.005, "corrupt_rate": 0.0,
                "response_p50": 0.0123, "response_p95": 0.5, "response_p99": 1.9},
        HOSTILE: {"ops": float("nan")},
    }  # fmt: skip
    one = entry(tmp_path, TEST, "emulated:ideal", (), {"sensors": 50}, by_operation=kinds)
    page = make_page(tmp_path, store(tmp_path / "0001_r.json", [one]))
    assert "experiment provider operation ops throttled failed corrupt p50 ms p95 ms p99 ms" in page.plain_text
    assert "emulated:ideal put 1,600 400 8 0 12.3 500 1,900" in page.plain_text
    assert "<script>alert(1)" not in page.text


def test_captions_have_the_percentiles_of_the_table(tmp_path: Path) -> None:
    exact = {"response_p50": 0.03369, "response_p90": 0.0365, "response_p95": 0.0371, "response_p99": 0.0372}
    one = entry(tmp_path, TEST, "emulated:ideal", list(operations(400, 30)), {"sensors": 50}, **exact)
    page = make_page(tmp_path, store(tmp_path / "0001_r.json", [one]))
    assert "emulated:ideal: p50 33.7 ms, p95 37.1 ms, p99 37.2 ms" in page.plain_text
    assert re.search(r"p50 ms p95 ms p99 ms", page.plain_text)
    assert re.search(r"33\.7 37\.1 37\.2", page.plain_text)
    (shares,) = (text for text in csv_files(page) if text.startswith("share,"))
    medians = [float(line.split(",")[1]) for line in shares.splitlines()[1:]]
    assert medians == sorted(medians)


def test_run_without_p95_is_readable(tmp_path: Path) -> None:
    one = entry(tmp_path, TEST, "emulated:ideal", list(operations(400, 30)), {"sensors": 50})
    del one["extra_info"]["response_p95"]
    page = make_page(tmp_path, store(tmp_path / "0001_r.json", [one]))
    assert "p50 ms p99 ms" in page.plain_text
    assert re.search(r"p50 [0-9.]+ ms, p95 [0-9.]+ ms, p99 [0-9.]+ ms", page.plain_text)


def test_page_of_many_runs_is_small(tmp_path: Path) -> None:
    """Its size grows with runs times experiments: 24 runs and 20 experiments may have 3 MB."""
    runs = []
    for run in range(6):
        entries = [
            entry(tmp_path, f"suites/iot/test_{test}.py::test_it", "folder",
                  list(operations(300, 20 + test + run * 0.3)), {"size_bytes": 1024 * (test + 1)}, run_id=f"r{run}",
                  start_wall_ms=1_795_355_616_898 + run * 86_400_000)
            for test in range(5)
        ]  # fmt: skip
        runs.append(store(tmp_path / f"{run:04}_run.json", entries))
    page = make_page(tmp_path, *runs)
    assert page.tags.count("figure") >= 2 * 5
    assert len(page.text.encode()) / (6 * 5) < 3_000_000 / (24 * 20)


def test_rows_of_a_provider_in_two_runs_name_the_run(tmp_path: Path) -> None:
    runs = [
        store(tmp_path / f"000{number}_r.json", [
            entry(tmp_path, TEST, "folder:x", params={"sensors": 10, "interval_s": 1}, loss_rate=number / 100,
                  published={"loss_rate": 0.0, "source": "thesis"})
        ])
        for number in (1, 2)
    ]  # fmt: skip
    rows = [row for row in make_page(tmp_path, *runs).text.split("<tr>") if "folder:x" in row]
    for number in (1, 2):
        shown = [row for row in rows if f">folder:x, 000{number}_r.json ({number})<" in row]
        assert [f"{number}.00 %" in row for row in shown] == [True, True], "of the values, and beside the published"


def test_a_column_of_words_may_have_cells_that_begin_with_a_number() -> None:
    rows = [("TLS", "TLSv1.3", "1"), ("content", "17 of 17 pieces readable", "unknown"), ("links", "no order", "2.5")]
    text = html.table("answers", ("question", "how", "s"), rows, style="words")
    assert text.count('<td class="t" data-label="how">') == 3
    assert text.count('<td data-label="s">') == 3
