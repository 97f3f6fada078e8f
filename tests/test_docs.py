"""The documents stay true: every command in a ```console block is run, and every link leads somewhere.

A command is a line that starts with ``$ `` (and what follows a trailing backslash). RULES below says how each kind
of command is run here. A command without a rule fails. The output of a command is not compared.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_cloudbench.emulators.profile import list_settings, parse_profile
from pytest_cloudbench.judge.expect import parse_expectations
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import ConfigError, Op, Outcome, Verb
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.results.oplog import write_parquet
from pytest_cloudbench.services.command import load_recipe
from pytest_cloudbench.workload.arrival import NAMES, arrival
from pytest_cloudbench.workload.trace import parse_trace
from tests.limits import HANG_S
from tests.provider_folders import make_folders
from tests.results.stored_runs import store_series
from tests.runs import QUIET

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changelog.d/README.md")])
BIN = Path(sys.executable).parent
# Left out of the copy in which commands run: results of this checkout, caches and environments.
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".tox", ".testbed", ".*_cache", "__pycache__", "dist", "build", ".hypothesis"
)
# Commands for a real account are only collected. That needs a token, which may be any text.
NO_ACCOUNT = {"CLOUDBENCH_DROPBOX_ACCESS_TOKEN": "none"}

Words = list[str]


@dataclass(frozen=True)
class Rule:
    """A substitute for the commands that begin with ``pattern``. If ``run`` returns None, the command is not run."""

    pattern: str
    why: str
    run: Callable[[Words], Words | None]


# --- substitutes: functions from the words of a command to the words that are run instead ---


def keep_command(command: Words) -> Words:
    return command


def skip_command(command: Words) -> None:
    return None


def ask_help(command: Words) -> Words:
    """Return the command for the help of the same program. run_command looks up each option in its output."""
    if command[1:2] == ["--storage"]:  # pytest-benchmark's own option, before its sub-command
        return [command[0], "--help"] if len(command) < 4 else [*command[:1], command[3], "--help"]
    if "pytest" in command[:3]:  # a suite's options are known where its folder is named
        return ["pytest", *(word for word in command if word.startswith("suites/")), "--help"]
    has_second = (
        command[0] in {"cloudbench", "towncrier", "pytest-benchmark", "tools/testbed"} or "python" in command[0]
    )
    has_third = command[:2] in (["cloudbench", "baseline"], ["cloudbench", "raid"], ["cloudbench", "hosts"])
    return [*command[: 1 + has_second + has_third], "--help"]


def is_for_emulator(command: Words) -> bool:
    specs = re.findall(r"--provider[= ](\S+)", " ".join(command))
    return all(spec.startswith(("emulated:", "folder:")) for spec in specs)


@functools.cache
def one_experiment() -> str:
    """Return a -k expression for the suite's experiment with the smallest numbers in its name."""
    output = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/iot", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    ).stdout
    tests: Words = re.findall(r"^\S+::(\S+)$", output, re.MULTILINE)
    assert tests, output
    return min(tests, key=lambda test: [int(number) for number in re.findall(r"\d+", test)])


def shrink_command(command: Words) -> Words:
    """Use two agents and one experiment. Only collect the tests if they need a real account or the paper's grid."""
    if not is_for_emulator(command) or "--grid paper" in " ".join(command):
        return [*command, "--collect-only"]
    words = [*command]
    if "-n" in words:
        words[words.index("-n") + 1] = "2"
    return words if "-k" in words or "::" in " ".join(words) else [*words, "-k", one_experiment()]


def collect_only(command: Words) -> Words:
    return [*command, "--collect-only"]


def use_folder(command: Words) -> Words:
    """Run a whole suite on a folder, which takes seconds. The suites' own tests run them on emulators."""
    if not is_for_emulator(command) or "--grid paper" in " ".join(command):
        return [*command, "--collect-only"]
    limits = ["--capacity-ops", "200", "--capacity-seconds", "0.2"] if "suites/capacity" in command else []
    return [*command, *limits, "--provider", "folder:objects"]


def shrink_example(command: Words) -> Words:
    """Run a part of the example that ``cloudbench new`` writes, on two agents at most and without a remote service."""
    substitutes = {
        "experiment.bench.toml": "src/pytest_cloudbench/data/example.bench.toml",
        "folder:/mnt/nas": "folder:nas",
    }
    words = [substitutes.get(word, word).replace("10%", "100000%") for word in command]
    if "-n" in words:
        words[words.index("-n") + 1] = "2"
    words += [] if "--provider" in words else ["--provider", "emulated:ideal"]
    return words if "-k" in words else [*words, "-k", "batch"]


def shrink_make(command: Words) -> Words:
    """Run the recipe with this environment in place of .venv, without set-up, and with few experiments."""
    arguments = [word.removeprefix("ARGS=") for word in command if word.startswith("ARGS=")]
    args = shlex.split(" ".join(arguments))
    if command[1] == "iot":
        args = shrink_command(["pytest", "-n", "50", *args])[1:]
    return ["make", command[1], "STAMP=", f"PY={sys.executable}", "ARGS=" + shlex.join(args)]


def make_dry_run(command: Words) -> Words:
    return ["make", "--dry-run", *command[1:], "STAMP=", f"PY={sys.executable}"]


RULES = [
    Rule(r"make (iot)\b", "one experiment, two agents, no set-up", shrink_make),
    Rule(r"make help\b|make$", "as written", keep_command),
    Rule(r"make [a-z-]+", "runs the tests, which run this; the target must exist", make_dry_run),
    Rule(r"(python3? -m )?pytest\b.*--(help|version|markers|fixtures)\b", "as written", keep_command),
    Rule(
        r"(python3? -m )?pytest( -\S+)*( tests\b.*)?$",
        "the project's own tests would run this test again",
        skip_command,
    ),
    Rule(
        r"pytest --pyargs pytest_cloudbench\.suites", "needs the wheel; tests/test_packaging.py runs it", skip_command
    ),
    Rule(r"(python3? -m )?pytest\b.*\bsuites/iot\b", "one experiment, two agents", shrink_command),
    Rule(r"pytest suites/availability\b", "one series of seconds", keep_command),
    Rule(r"pytest suites/\w+ --client (syncthing|unison)\b", "minutes; the reference client's are run", collect_only),
    Rule(r"(python3? -m )?pytest\b.*\bsuites/\w+\b", "on a folder, in seconds", use_folder),
    Rule(r"pytest experiment\.bench\.toml", "the example, on what is at hand", shrink_example),
    Rule(r"(python3? -m )?pytest\b", "a file of the reader's: options are parsed", ask_help),
    Rule(r"(pytest-benchmark|py\.test-benchmark) ", "needs earlier results: options are parsed", ask_help),
    Rule(r"cloudbench\b.*--(help|version)\b|cloudbench$", "as written", keep_command),
    Rule(r"cloudbench new\b", "to the screen: what is there is not overwritten", lambda command: [*command[:2], "-"]),
    Rule(r"cloudbench schema\b", "as written", keep_command),
    Rule(r"cloudbench published\b(?!.*--run)", "as written", keep_command),
    Rule(r"cloudbench [a-z]+", "serves for ever, or needs an account: options are parsed", ask_help),
    Rule(r"towncrier (build|create)\b", "changes the checkout: options are parsed", ask_help),
    Rule(r"(python3? -m )?tox\b", "installs for minutes; its options are tox's own", skip_command),
    Rule(r"(python3? -m )?pip install\b", "needs the index; tests/test_packaging.py installs the wheel", skip_command),
    Rule(
        r"python3? -m venv\b|source |\. |cd |mkdir |export |git (clone|diff)\b",
        "prepares the reader's machine",
        skip_command,
    ),
    Rule(r"tools/testbed list\b", "as written", keep_command),
    Rule(r"tools/testbed (install|up|down) ", "changes the reader's machine: options are parsed", ask_help),
    Rule(r"(sudo )?apt(-get)? install\b", "prepares the reader's machine", skip_command),
    Rule(r"(\.venv/bin/)?python3? (tools|benchmarks|docs)/\S+\.py\b", "takes long: options are parsed", ask_help),
]


# --- reading documents ---


def commands(text: str) -> list[str]:
    """Return the commands of all console blocks. Lines that end with a backslash are joined."""
    command_lines = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        joined = re.sub(r"\\\n\s*(?:> )?", "", block)
        command_lines += [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
    return command_lines


def parts(command: str) -> list[Words]:
    """Return the commands of one line: ``a && b`` are two. Leading NAME=VALUE and comments are left out."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    split_words: list[Words] = [[]]
    redirected = False
    for word in lexer:
        if word in {"&&", ";", "||", "|", "&"}:
            split_words.append([])
            redirected = False
        elif word in {">", ">>", "<"} or redirected:
            redirected = True
        elif split_words[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):
            split_words[-1].append(word)
    return [words for words in split_words if words]


def rule_for(words: Words) -> Rule | None:
    return next((rule for rule in RULES if re.match(rule.pattern, " ".join(words))), None)


def slug(heading: str) -> str:
    """Return the anchor that Markdown viewers give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)}


def broken_links(document: Path, text: str) -> list[str]:
    """Return the relative links whose file or heading does not exist."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name
        if name and not path.exists():
            broken.append(target)
        elif anchor and (not name or path.suffix == ".md"):
            target_text = path.read_text("utf-8") if name else text
            broken += [] if anchor in anchors(target_text) else [target]
    return broken


def marks(words: Words) -> list[pytest.MarkDecorator]:
    """Return the mark of slow commands, which measure. Suites and examples have quick tests of their own."""
    rule = rule_for(words)
    is_slow = rule is not None and rule.run in (
        shrink_command,
        shrink_make,
        use_folder,
        shrink_example,
        collect_only,
        keep_command,
    )
    return [pytest.mark.slow] if is_slow else []


FIRST = {
    tuple(words): document
    for document in reversed(DOCUMENTS)
    for command in commands(document.read_text("utf-8"))
    for words in parts(command)
}
"""Commands, each with the first document that has it."""

CASES = [
    pytest.param([*words], id=f"{document.relative_to(ROOT)}: {' '.join(words)}", marks=marks([*words]))
    for words, document in FIRST.items()
]


# --- the tests ---


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, which commands may write to."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("docs") / "checkout", ignore=NOT_COPIED))


def run_command(words: Words, checkout: Path) -> str:
    """Run the command's substitute and return its output, or "" if it is not run. Fail if it fails or has no rule."""
    rule = rule_for(words)
    assert rule, f"no rule in {Path(__file__).name} says how to run: {' '.join(words)}"
    substitute = rule.run(words)
    if substitute is None:
        return ""
    make_folders(checkout, substitute)
    run = help_of if rule.run is ask_help else run_in
    status, output = run(checkout, tuple(substitute))
    assert status == 0, f"{shlex.join(substitute)} ended with {status}:\n{output}"
    if rule.run is ask_help:
        words = [word for word in words if word != "--storage"]
        options = {word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z][\w-]*(=.*)?", word)}
        unknown = [option for option in options if not re.search(rf"{option}\b", output)]
        assert not unknown, f"{shlex.join(substitute)} knows no {', '.join(unknown)}"
    return output


def run_in(checkout: Path, command: tuple[str, ...]) -> tuple[int, str]:
    """Run a command in the copy of this checkout. Returns its exit status and its output."""
    leaky = ("PYTEST", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(leaky)}
    environment |= {"PYTEST_ADDOPTS": QUIET, "PATH": f"{BIN}{os.pathsep}{environment['PATH']}", "COLUMNS": "200"}
    program = {"python": sys.executable, "python3": sys.executable, ".venv/bin/python": sys.executable}
    done = subprocess.run(
        [program.get(command[0], command[0]), *command[1:]],
        cwd=checkout,
        env=environment | NO_ACCOUNT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout


help_of = functools.cache(run_in)
"""Run each ``--help`` once, however many commands of the documents need it."""


@pytest.mark.parametrize("words", [[*words] for words in FIRST], ids=" ".join)
def test_a_rule_says_how_a_command_is_run(words: Words) -> None:
    assert rule_for(words)


@pytest.mark.parametrize("words", CASES)
def test_command_of_the_documents_runs(words: Words, checkout: Path) -> None:
    run_command(words, checkout)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document, document.read_text("utf-8")) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_in_console_blocks(document: Path) -> None:
    """A prompt in a block of another kind would never be run."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    others = [block for kind, block in blocks if kind != "console"]
    assert not [line for block in others for line in block.splitlines() if line.startswith("$ ")]


def block(document: str, kind: str) -> str:
    """Return the first block of a kind in a document."""
    return blocks(document, kind)[0]


def blocks(document: str, kind: str) -> list[str]:
    """Return all blocks of a kind in a document, at least one."""
    matches = re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / document).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert matches, f"{document} has no {kind} block"
    return matches


@pytest.mark.parametrize(
    ("document", "tests", "time_scale"),
    [
        ("README.md", 1, 2),
        pytest.param("docs/tutorial.md", 1, 2, marks=pytest.mark.slow),
        pytest.param("docs/reference/arrivals.md", 1, 2, marks=pytest.mark.slow),
        pytest.param("docs/experiments.md", 5, 100, marks=pytest.mark.slow),
        pytest.param("docs/experiments.md", 6, 100, marks=pytest.mark.slow),  # with one that may take 50,000 uploads
    ],
)
def test_the_experiments_in_a_document_run(document: str, tests: int, time_scale: int, tmp_path: Path) -> None:
    sources = [source for source in blocks(document, "python") if tests > 5 or "Stable(" not in source]
    (tmp_path / "test_document.py").write_text("\n".join(sources) if tests > 1 else sources[0])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--provider", "emulated:ideal", "--time-scale", f"{time_scale}", "-n", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout
    assert "emulated" in done.stdout


def test_the_site_is_built_without_a_warning_and_needs_no_other_place(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert pages.keys() == documents | {"404.html", "example-report.html"}
    external_pattern = (
        r'<(?:script|img|iframe|link rel="(?:stylesheet|preconnect|icon)")[^>]*(?:src|href)="(?:https?:)?//'
    )
    assert not [page for page, text in pages.items() if re.search(external_pattern, text)]


def test_the_expectation_in_the_documents_is_one() -> None:
    (text,) = (block_text for block_text in blocks("docs/gates.md", "toml") if "[[expect]]" in block_text)
    (claim,) = parse_expectations(text, "docs/gates.md")
    assert (claim.metric, claim.at_most, claim.where) == ("loss_rate", 0.0, {"test": "test_twenty_sensors"})


def test_the_question_in_sql_is_answered(tmp_path: Path) -> None:
    record = Op(Verb.PUT, 0, 0, 0, 1, 2, 0, 5_000_001, 9, Outcome.OK)
    write_parquet(OpTable.of([record]), tmp_path / "results" / "machine" / "run" / "it.parquet", {})
    store_series(tmp_path / "results", [0.1])
    assert Index.open(tmp_path / "results").write(), "as cloudbench history leaves it"
    done = subprocess.run(
        [sys.executable, "-c", block("docs/reference/records.md", "python")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"ok\s*│\s*1 │\s*5\.0", done.stdout), done.stdout


def test_the_profile_in_the_documents_is_one() -> None:
    profile = parse_profile(block("docs/reference/emulator.md", "toml"), "docs/reference/emulator.md")
    assert profile.throttle.rate_per_s == 20
    assert list_settings(profile).keys() <= {key for key, _ in keys_of(block("docs/reference/emulator.md", "toml"))} | {
        "account.type",
        "account.token_lifetime_s",
    }, "a key of the profile is not documented"


def test_the_recipes_in_the_documents_are_recipes(tmp_path: Path) -> None:
    texts = [*blocks("docs/providers.md", "toml"), *blocks("docs/reference/drivers.md", "toml")]
    recipes = [text for text in texts if "\ncommand = " in text]
    assert len(recipes) == 2
    for number, text in enumerate(recipes):
        (tmp_path / f"{number}.toml").write_text(text)
        assert load_recipe(str(tmp_path / f"{number}.toml")).driver in {"s3", "webdav"}


def test_the_arrivals_in_the_documents_are_those_there_are() -> None:
    text = (ROOT / "docs/reference/arrivals.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    assert tuple(name for name, *_ in rows) == NAMES
    for name, _, keys in rows:
        documented = set(re.findall(r"\w+", re.sub(r"= [^\],]+", "", keys)))
        with pytest.raises(ConfigError, match="unknown key, expected one of ") as caught:
            arrival(name, {"": 0})
        assert documented == set(str(caught.value).rpartition("one of ")[2].split(", "))
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(examples[1], {})
    assert parse_trace(block("docs/reference/arrivals.md", "csv")).sensors == ("hall", "roof")


def keys_of(text: str) -> list[tuple[str, object]]:
    """Return ``section.key`` and the value of each key of a TOML text."""
    return [
        (f"{section}.{key}", value) for section, table in tomllib.loads(text).items() for key, value in table.items()
    ]


# --- tests of the checks ---


def test_reading_of_console_blocks() -> None:
    text = "```console\n$ make iot  # a comment\noutput\n$ a \\\n    --b && X=1 c 'd e'\n```\n```python\n$ no\n```\n"
    assert [parts(command) for command in commands(text)] == [[["make", "iot"]], [["a", "--b"], ["c", "d e"]]]


def test_an_unknown_command_fails(checkout: Path) -> None:
    with pytest.raises(AssertionError, match="no rule"):
        run_command(["frobnicate", "--now"], checkout)


def test_an_unknown_option_fails(checkout: Path) -> None:
    with pytest.raises(AssertionError, match="knows no --frobnicate"):
        run_command(["pytest", "test_mine.py", "--frobnicate=3"], checkout)


def test_an_unknown_target_fails(checkout: Path) -> None:
    with pytest.raises(AssertionError, match="frobnicate"):
        run_command(["make", "frobnicate"], checkout)


def test_a_failing_command_fails(checkout: Path) -> None:
    with pytest.raises(AssertionError, match="ended with"):
        run_command(["pytest", "--markers", "--frobnicate"], checkout)


def test_make_iot_is_run_without_set_up(checkout: Path) -> None:
    words = shrink_make(["make", "iot"])
    printed = subprocess.run([*words, "--dry-run"], cwd=checkout, capture_output=True, text=True, check=True).stdout
    assert "set" not in printed.split("pytest")[0]
    assert "suites/iot -n 50 -n 2 -k" in printed


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pytest suites/iot -n 50 -k x", "pytest suites/iot -n 2 -k x"),
        ("pytest suites/iot --provider dropbox", "pytest suites/iot --provider dropbox --collect-only"),
        ("pytest suites/iot --provider=box: -n 8", "pytest suites/iot --provider=box: -n 8 --collect-only"),
        ("pytest test_mine.py --max-ops 9", "pytest --help"),
        (
            "pytest experiment.bench.toml -n 10",
            "pytest src/pytest_cloudbench/data/example.bench.toml -n 2 --provider emulated:ideal -k batch",
        ),
        ("cloudbench new mine.bench.toml", "cloudbench new -"),
        ("cloudbench emulate dropbox --port 0", "cloudbench emulate --help"),
        ("python tools/fit.py --x", "python tools/fit.py --help"),
        ("make bench", f"make --dry-run bench STAMP= PY={sys.executable}"),
        ("git clone X", None),
    ],
)
def test_substitutions(command: str, expected: str | None) -> None:
    words = command.split()
    rule = rule_for(words)
    assert rule
    assert rule.run(words) == (expected.split() if expected else None)


def test_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One thing, two\n", "utf-8")
    text = "[x](a.md#one-thing-two) [y](a.md#three) [z](b.md) [h](https://example.org) [s](#here)\n# Here\n"
    assert broken_links(tmp_path / "c.md", text) == ["a.md#three", "b.md"]
