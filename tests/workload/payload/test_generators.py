"""The properties that each generator's name promises, measured on its bytes."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import math
import subprocess
import sys
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import KIB, MIB, Content, UsageError, chunks
from pytest_cloudbench.workload.payload import Generator, Payloads, fresh, generator
from pytest_cloudbench.workload.payload.generators import JpegPayload
from pytest_cloudbench.workload.payload.jpeg import MIN_BYTES
from pytest_cloudbench.workload.payload.registry import EDITS, GENERATORS, UPDATES
from pytest_cloudbench.workload.payload.sizes import EmpiricalSizes, LognormalSizes, UniformSizes
from pytest_cloudbench.workload.payload.words import WORDS
from tests.limits import scale_examples

BLOCK = 4 * KIB
FEW = settings(deadline=None, max_examples=scale_examples(25))
SHARES = st.integers(0, 20).map(lambda twentieths: twentieths / 20)
SIZES = st.one_of(
    st.integers(MIN_BYTES, 5 * KIB), st.integers(32 * KIB - 3, 32 * KIB + 3), st.integers(MIN_BYTES, 150 * KIB)
)
PARAMS: dict[str, dict[str, Any]] = {
    "random": {},
    "identical": {},
    "sparse": {"text": "abc"},
    "delta": {"percent": 0.4, "where": "spread"},
    "text": {},
    "compressible": {"ratio": 0.3},
    "duplicated": {"ratio": 0.6},
    "jpeg": {},
    "fake_jpeg": {},
}
ALL = [*PARAMS, "mixed"]
SAME_IN_EVERY_FILE = {"identical", "sparse"}


def make(name: str, size: int, seed: str = "seed") -> Generator:
    if name == "mixed":
        params = {"distribution": "fixed", "size_bytes": size, "content": {"generator": "delta", "percent": 0.5}}
        return generator("mixed", params, seed)
    return generator(name, {"size_bytes": size, **PARAMS[name]}, seed)


def read_all(content: Content) -> bytes:
    return content.read(0, content.size_bytes)


def blocks(data: bytes) -> list[bytes]:
    return [data[offset : offset + BLOCK] for offset in range(0, len(data) - BLOCK + 1, BLOCK)]


def compressed_share(data: bytes) -> float:
    return len(zlib.compress(data, 6)) / len(data)


# --- all generators ---


def test_every_generator_is_tested_here() -> None:
    assert PARAMS.keys() == GENERATORS.keys()


@pytest.mark.parametrize("name", ALL)
@FEW
@given(data=st.data(), size=SIZES)
def test_the_size_is_exact_and_any_read_is_the_slice_of_the_whole(name: str, data: st.DataObject, size: int) -> None:
    content = make(name, size).content(3, 4)
    everything = read_all(content)
    assert (content.size_bytes, len(everything), make(name, size).size_bytes) == (size, size, size)
    for _ in range(4):
        offset = data.draw(st.integers(0, size + 9))
        length = data.draw(st.one_of(st.integers(0, 90), st.integers(0, size + 9)))
        assert content.read(offset, length) == everything[offset : offset + length]
    assert b"".join(chunks(content, data.draw(st.integers(997, 70_000)))) == everything


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [600, 100 * KIB])
def test_only_the_seed_decides_the_bytes(name: str, size: int) -> None:
    first = make(name, size, "a")
    assert read_all(first.content(1, 2)) == read_all(make(name, size, "a").content(1, 2))
    others = [
        first.content(1, 3),
        first.content(2, 1),
        make(name, size, "b").content(1, 2),
        fresh(first, 2).content(1, 2),
    ]
    differ = [read_all(other) != read_all(first.content(1, 2)) for other in others]
    expected = {"identical": [False, False, True, False], "sparse": [False] * 4}
    assert differ == expected.get(name, [True] * 4)


PINNED = {
    "random": "5baa2dfcd8c930bc",
    "identical": "278067297bead3b4",
    "sparse": "119b75eaba482433",
    "delta": "40a9f7f11a178db9",
    "text": "260811b708b348df",
    "compressible": "a9b3929521ffb457",
    "duplicated": "2d9afa831d46af99",
    "jpeg": "3b4ad2a7f64bc2e8",
    "fake_jpeg": "c66f816b5f4be7f2",
    "mixed": "ba74d9cbb1e22d69",
}


@pytest.mark.parametrize("name", ALL)
def test_the_bytes_are_the_same_in_every_version(name: str) -> None:
    """Stored results name a seed, which must mean the same bytes years later, in small and large files."""
    data = b"".join(read_all(make(name, size).content(1, 2)) for size in (1000, 100_000))
    assert hashlib.sha256(data).hexdigest()[:16] == PINNED[name]


@pytest.mark.parametrize("name", [name for name in ALL if name not in SAME_IN_EVERY_FILE | {"delta", "mixed"}])
def test_no_two_files_share_a_block(name: str) -> None:
    payload = make(name, 64 * KIB)
    files = [set(blocks(read_all(payload.content(sensor, seq))[BLOCK:])) for sensor in range(3) for seq in range(3)]
    assert sum(map(len, files)) == len(set().union(*files))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ALL)
def test_gibibytes_are_read_in_pieces_through_constant_memory(name: str) -> None:
    size = 6 * 1024 * MIB + 77
    content = make(name, size).content(0, 0)
    content.read(0, 1)  # imports modules and builds tables
    tracemalloc.start()
    try:
        for offset in (0, MIB - 1, 5000 * MIB + 5, size - MIB):
            assert len(content.read(offset, MIB)) == MIB
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 12 * MIB
    assert len(content.read(size - 3, MIB)) == 3


@pytest.mark.parametrize("name", sorted(set(ALL) - {"mixed"}))
def test_every_generator_is_a_method_of_the_fixture_too(name: str) -> None:
    params = {"size_bytes": 5000, **PARAMS[name]}
    assert getattr(Payloads("s"), name)(**params) == generator(name, params, "s")


def test_mixed_is_a_method_of_the_fixture_too() -> None:
    sizes = UniformSizes(100, 90_000)
    from_object, from_name = (
        Payloads("s").mixed(sizes, "text"),
        Payloads("s").mixed("uniform", "text", min_bytes=100, max_bytes=90_000),
    )
    assert read_all(from_object.content(1, 2)) == read_all(from_name.content(1, 2))


def test_a_users_own_generator_is_not_reseeded() -> None:
    class Own:
        size_bytes, seed = 1, "x"

        def content(self, sensor: int, seq: int) -> Content:
            raise NotImplementedError

    own = Own()
    assert fresh(own, 2) is own


def test_small_random_files_import_no_cipher_and_nothing_else_that_costs() -> None:
    code = (
        "import sys; from pytest_cloudbench.workload.payload import Payloads\n"
        "content = Payloads('s').random(64 * 1024).content(0, 0); content.read(0, 65536)\n"
        "print(sorted(n for n in sys.modules if n.startswith(('cryptography', 'pytest_cloudbench.workload.payload.'))))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "['pytest_cloudbench.workload.payload.base']"


# --- sparse, text ---


def test_sparse_files_repeat_the_string() -> None:
    assert read_all(Payloads("s").sparse(8, text="abc").content(5, 6)) == b"abcabcab"
    assert compressed_share(read_all(Payloads("s").sparse(MIB).content(0, 0))) < 0.005


@FEW
@given(size=st.integers(0, 60 * KIB), seq=st.integers(0, 99))
def test_text_is_words_of_the_dictionary(size: int, seq: int) -> None:
    data = read_all(Payloads("s").text(size).content(0, seq))
    assert set(data.decode("ascii").split()) <= set(WORDS)
    assert data.endswith(b"\n") or not size


def test_the_dictionary_is_one_of_common_words() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 2000
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@pytest.mark.parametrize("compress", [zlib.compress, bz2.compress, lzma.compress])
def test_text_compresses_like_words_drawn_one_by_one(compress: Callable[[bytes], bytes]) -> None:
    """The compressors look back over different distances: zlib 32 KiB, lzma 8 MiB, and bz2 sorts 900 kB."""
    words = Random(1).choices(WORDS, k=MIB // 6)
    drawn_text = "\n".join(" ".join(words[offset : offset + 12]) for offset in range(0, len(words), 12)).encode()[:MIB]
    data = read_all(Payloads("s").text(MIB).content(0, 0))
    assert len(compress(data)) == pytest.approx(len(compress(drawn_text)), rel=0.01)
    assert 0.25 < compressed_share(data) < 0.5


def test_no_line_of_a_text_comes_again_however_a_client_cuts_it() -> None:
    files = [read_all(Payloads("s").text(2 * MIB).content(0, seq)) for seq in range(3)]
    lines = [line for data in files for line in data.splitlines() if len(line.split()) == 12]
    assert len(lines) > 70_000
    assert len(set(lines)) == len(lines)


# --- delta ---


@FEW
@given(percent=SHARES, size=st.integers(1, 100_000), where=st.sampled_from(["front", "middle", "back"]))
def test_delta_files_share_the_requested_part(percent: float, size: int, where: str) -> None:
    payload = Payloads("s").delta(size, percent, where)
    first, second = read_all(payload.content(0, 0)), read_all(payload.content(0, 1))
    common = round(size * percent)
    start = {"front": 0, "middle": (size - common) // 2, "back": size - common}[where]
    assert first[start : start + common] == second[start : start + common]
    other_bytes = [
        (a, b) for offset, (a, b) in enumerate(zip(first, second, strict=True)) if not start <= offset < start + common
    ]
    equal = sum(a == b for a, b in other_bytes)
    assert equal <= len(other_bytes) / 256 + 6 * math.sqrt(len(other_bytes) / 256) + 2  # by chance


@pytest.mark.parametrize("where", ["front", "middle", "back", "spread"])
@FEW
@given(percent=SHARES, count=st.integers(10, 60), tail=st.integers(0, BLOCK - 1))
def test_delta_files_share_the_requested_blocks(where: str, percent: float, count: int, tail: int) -> None:
    payload = Payloads("s").delta(count * BLOCK + tail, percent, where)
    files = [blocks(read_all(payload.content(sensor, 7))) for sensor in range(5)]
    for other in files[1:]:
        same = sum(a == b for a, b in zip(files[0], other, strict=True))
        assert same == pytest.approx(percent * count, abs=2)
        assert same == len(set(files[0]) & set(other))


def test_the_thesis_files_share_half() -> None:
    """Figure 4.9 has five files of two parts. The first part, at the front, is the same in all of them."""
    payload = Payloads("s").delta(200 * KIB, 0.5)
    files = [read_all(payload.content(0, seq)) for seq in range(5)]
    assert len({data[: 100 * KIB] for data in files}) == 1
    assert (
        len({data[offset : offset + BLOCK] for data in files for offset in range(100 * KIB, 200 * KIB, BLOCK)})
        == 5 * 25
    )


def test_spread_edits_touch_every_quarter() -> None:
    payload = Payloads("s").delta(400 * BLOCK, 0.2, "spread")
    first, second = (blocks(read_all(payload.content(0, seq))) for seq in (0, 1))
    same = [a == b for a, b in zip(first, second, strict=True)]
    assert [sum(same[offset : offset + 100]) for offset in range(0, 400, 100)] == [20] * 4


# --- compressible, duplicated ---


@FEW
@given(ratio=SHARES, size=st.integers(32 * KIB, 200 * KIB), chunk=st.sampled_from([512, BLOCK, 16 * KIB]))
def test_compression_removes_the_requested_share(ratio: float, size: int, chunk: int) -> None:
    data = read_all(Payloads("s").compressible(size, ratio, chunk).content(1, 2))
    assert compressed_share(data) == pytest.approx(1 - ratio, abs=0.035)
    ends = [data[offset : offset + chunk] for offset in range(0, size, chunk)]
    assert all(part.endswith(bytes(round(len(part) * ratio))) for part in ends)


@FEW
@given(ratio=SHARES, count=st.integers(1, 90), tail=st.integers(0, 1))
def test_the_requested_share_of_blocks_repeats(ratio: float, count: int, tail: int) -> None:
    data = read_all(Payloads("s").duplicated(count * BLOCK - tail, ratio).content(1, 2))
    parts = [data[offset : offset + BLOCK] for offset in range(0, len(data), BLOCK)]
    if not tail:
        assert len(set(parts)) == count - min(round(ratio * count), count - 1)
    assert len(set(parts)) >= count - round(ratio * count)


def test_duplicated_files_cannot_be_compressed_and_use_many_sources() -> None:
    data = read_all(Payloads("s").duplicated(2 * MIB, 0.5, 64 * KIB).content(0, 0))
    assert compressed_share(data) > 0.99
    times = Counter(blocks(read_all(Payloads("s").duplicated(4 * MIB, 0.5).content(0, 0))))
    assert max(times.values()) < 20
    assert sum(count > 1 for count in times.values()) > 100


@pytest.mark.parametrize("name", ["random", "identical", "delta", "jpeg"])
def test_incompressible_generators_do_not_compress(name: str) -> None:
    assert compressed_share(read_all(make(name, 30 * KIB).content(0, 0))[KIB:]) > (0.96 if name == "jpeg" else 0.99)
    assert compressed_share(read_all(make(name, MIB).content(0, 0))) > (0.96 if name == "jpeg" else 0.99)


# --- mixed ---


def draw_sizes(count: int = 2000, **params: Any) -> list[int]:
    payload = generator("mixed", params, "seed")
    return [payload.content(sensor, seq).size_bytes for sensor in range(20) for seq in range(count // 20)]


def test_fixed_and_uniform_sizes_are_in_range() -> None:
    assert set(draw_sizes(distribution="fixed", size_bytes=7)) == {7}
    sizes = draw_sizes(distribution="uniform", min_bytes=100, max_bytes=1100)
    assert all(100 <= size <= 1100 for size in sizes)
    expected = [(index + 1) / len(sizes) for index in range(len(sizes))]
    distance = max(abs((size - 99.5) / 1001 - share) for size, share in zip(sorted(sizes), expected, strict=True))
    assert distance < 1.63 / math.sqrt(len(sizes))  # Kolmogorov-Smirnov, 1 %


def test_lognormal_sizes_have_their_median_and_bounds() -> None:
    logs = sorted(math.log(size) for size in draw_sizes(distribution="lognormal", median_bytes=100_000, sigma=1.5))
    shares = [(1 + math.erf((value - math.log(100_000)) / 1.5 / math.sqrt(2))) / 2 for value in logs]
    distance = max(abs(share - (index + 1) / len(logs)) for index, share in enumerate(shares))
    assert distance < 1.63 / math.sqrt(len(logs))
    bounded: dict[str, Any] = {
        "distribution": "lognormal",
        "median_bytes": 1000,
        "sigma": 3,
        "min_bytes": 50,
        "max_bytes": 9000,
    }
    assert (min(draw_sizes(**bounded)), max(draw_sizes(**bounded))) == (50, 9000)


@pytest.mark.parametrize(
    "sizes",
    [
        LognormalSizes(5000, 1.0),
        LognormalSizes(5000, 2.0, 1000, 20_000),
        LognormalSizes(10, 0.0, 20),
        LognormalSizes(4 * KIB, 10.0, 0, 2**30),
        UniformSizes(3, 9),
    ],
)
def test_the_mean_equals_the_mean_of_draws(sizes: LognormalSizes | UniformSizes) -> None:
    chance = Random(1)
    mean = sum(sizes.draw(chance) for _ in range(20_000)) / 20_000
    assert sizes.mean_bytes == pytest.approx(mean, rel=0.06)


def test_empirical_sizes_come_from_a_list_or_a_file() -> None:
    assert set(draw_sizes(distribution="empirical", sizes_bytes=[3, 5])) == {3, 5}
    texts = {"sizes.csv": "# bytes, how often\n100, 1\n\n200,3  # most\n"}
    payload = generator("mixed", {"distribution": "empirical", "file": "sizes.csv"}, "s", texts.__getitem__)
    counts = Counter(payload.content(0, seq).size_bytes for seq in range(1000))
    assert counts.keys() == {100, 200}
    assert counts[200] == pytest.approx(750, abs=60)
    assert payload.size_bytes == 175
    assert EmpiricalSizes.parse("7\n9\n").mean_bytes == 8


@pytest.mark.parametrize("text", ["x", "1,2,3", "-1", "5,0", "5,nan", "1.5"])
def test_a_wrong_line_of_sizes_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"sizes\.csv, line 2: .*expected BYTES or BYTES,WEIGHT"):
        EmpiricalSizes.parse(f"1\n{text}\n", "sizes.csv")


def test_mixed_files_come_from_the_other_generator() -> None:
    payload = Payloads("s").mixed("uniform", {"generator": "jpeg"}, min_bytes=500, max_bytes=2000)
    assert getattr(payload, "suffix", None) == ".jpg"
    content = payload.content(1, 2)
    assert read_all(content) == read_all(Payloads("s").jpeg(content.size_bytes).content(1, 2))


@pytest.mark.parametrize("size_bytes", [0, 163, MIN_BYTES - 1])
def test_an_image_too_small_for_its_format_is_refused(size_bytes: int) -> None:
    """A trace or a mixture of operations gives the size of each file, after the payload was made."""
    payload = JpegPayload("s", size_bytes)
    with pytest.raises(UsageError, match=f"payload jpeg: size_bytes is {size_bytes}; expected {MIN_BYTES} or more"):
        payload.content(0, 0)


# --- errors that name the wrong key ---


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("rnd", {}, f"payload 'rnd' is not known; known are {', '.join(GENERATORS)}, mixed"),
        ("random", {}, "payload random: size_bytes is missing; expected 0 or more (a whole number)"),
        ("random", {"size_bytes": -1}, "payload random: size_bytes is -1; expected 0 or more (a whole number)"),
        ("random", {"size_bytes": True}, "payload random: size_bytes is True; expected 0 or more (a whole number)"),
        ("random", {"size_bytes": "9"}, "payload random: size_bytes is '9'; expected 0 or more (a whole number)"),
        ("random", {"size_bytes": 9, "x": 1}, "payload random: x is not a parameter of it; known are size_bytes"),
        ("delta", {"size_bytes": 9}, "payload delta: percent is missing; expected a share from 0 to 1"),
        ("delta", {"size_bytes": 9, "percent": 90}, "payload delta: percent is 90; expected a share from 0 to 1"),
        (
            "delta",
            {"size_bytes": 9, "percent": 0.9, "where": "end"},
            "payload delta: where is 'end'; expected one of front, middle, back, spread",
        ),
        ("compressible", {"size_bytes": 9, "ratio": math.nan}, "payload compressible: ratio is nan; expected a share"),
        (
            "duplicated",
            {"size_bytes": 9, "ratio": 1, "block_bytes": 0},
            "payload duplicated: block_bytes is 0; expected 1",
        ),
        ("sparse", {"size_bytes": 9, "text": ""}, "payload sparse: text is ''; expected a text that is not empty"),
        ("jpeg", {"size_bytes": 9}, f"payload jpeg: size_bytes is 9; expected {MIN_BYTES} or more"),
        ("mixed", {}, "payload mixed: distribution is None; expected one of fixed, uniform, lognormal, empirical"),
        ("mixed", {"distribution": "normal"}, "payload mixed: distribution 'normal' is not known; known are fixed"),
        (
            "mixed",
            {"distribution": "uniform", "min_bytes": 1},
            "payload mixed, distribution uniform: max_bytes is missing",
        ),
        (
            "mixed",
            {"distribution": "uniform", "min_bytes": 5, "max_bytes": 4},
            "payload mixed, distribution uniform: max_bytes is 4; expected 5 (min_bytes) or more",
        ),
        ("mixed", {"distribution": "empirical"}, "payload mixed, distribution empirical: expected either sizes_bytes"),
        (
            "mixed",
            {"distribution": "empirical", "file": "x"},
            "payload mixed, distribution empirical: file cannot be read",
        ),
        (
            "mixed",
            {"distribution": "fixed", "size_bytes": 9, "content": []},
            "payload mixed: content is []; expected one of",
        ),
        (
            "mixed",
            {"distribution": "fixed", "size_bytes": 9, "content": "jpeg"},
            "payload jpeg: size_bytes is 9; expected",
        ),
    ],
)
def test_a_wrong_key_is_named_in_one_line(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        generator(name, params, "s")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_file_of_sizes_that_cannot_be_read_is_named() -> None:
    def fail_to_read(path: str) -> str:
        raise FileNotFoundError(2, "No such file", path)

    with pytest.raises(UsageError, match=r"distribution empirical: file is 'x\.csv'; cannot be read"):
        generator("mixed", {"distribution": "empirical", "file": "x.csv"}, "s", fail_to_read)


def test_the_document_lists_every_name_and_parameter() -> None:
    from tests.test_architecture import ROOT

    text = (ROOT / "docs" / "reference" / "payloads.md").read_text("utf-8")
    tables: list[Any] = [{name: params for name, (_, params) in table.items()} for table in (GENERATORS, UPDATES)]
    for name, params in [*tables[0].items(), *tables[1].items(), *EDITS.items()]:
        assert f"| `{name}` |" in text
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{key}`" in row for key in params if key not in {"size_bytes", "content"}), row


# --- segments ---


@given(st.integers(1, 3000), st.data())
def test_segments_are_the_parts_of_one_object(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, min(size, 100)))
    payload = Payloads("seed").segments(size, count)
    parts = [read_all(payload.content(index, 0)) for index in range(count)]
    assert b"".join(parts) == read_all(Payloads("seed").segments(size, 1).content(0, 0))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(map(len, parts)) == payload.size_bytes
    assert read_all(payload.content(0, 1)) != parts[0] or size < 8, "another object"


def test_more_segments_than_bytes_are_refused() -> None:
    with pytest.raises(UsageError, match="count is 11; expected 1 to 10"):
        Payloads("seed").segments(10, 11)


def test_a_file_beyond_the_segments_is_refused() -> None:
    """Its bytes would be fewer than its size, and the provider would seem to have corrupted it."""
    with pytest.raises(UsageError, match="there is no file 3; expected count=2 files"):
        Payloads("seed").segments(1000, 2).content(2, 0)
