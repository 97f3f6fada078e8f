"""Generators, edits and update streams by the names and parameters that configuration files use.

What may live here: tables of names, and the checks that name the wrong key and say what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pytest_cloudbench.model import KIB, MIB, Content, UsageError
from pytest_cloudbench.workload.payload import edits, generators, jpeg
from pytest_cloudbench.workload.payload.base import Generator, IdenticalPayload, RandomContent, RandomPayload
from pytest_cloudbench.workload.payload.contents import Text
from pytest_cloudbench.workload.payload.sizes import EmpiricalSizes, FixedSize, LognormalSizes, Sizes, UniformSizes

_T = TypeVar("_T")
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Param:
    """What a key must hold: ``accepts`` says whether it does, ``expected`` says it to a reader."""

    expected: str
    accepts: Callable[[Any], bool]
    default: Any = _REQUIRED

    def read(self, what: str, key: str, given: Mapping[str, Any]) -> Any:
        """The value of ``key``. Raises UsageError."""
        value = given.get(key, self.default)
        if value is _REQUIRED:
            raise UsageError(f"{what}: {key} is missing; expected {self.expected}")
        if key in given and not self.accepts(value):
            raise UsageError(f"{what}: {key} is {value!r}; expected {self.expected}")
        return value


def _whole(least: int, default: Any = _REQUIRED) -> Param:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Param(f"{least} or more (a whole number)", accepts, default)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _positive(default: Any = _REQUIRED) -> Param:
    return Param("a number above 0", lambda value: _is_number(value) and value > 0, default)


def _not_negative(default: Any = _REQUIRED) -> Param:
    return Param("a number, 0 or more", lambda value: _is_number(value) and value >= 0, default)


def _share(default: Any = _REQUIRED) -> Param:
    return Param("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1, default)


def _one_of(*names: str, default: Any = _REQUIRED) -> Param:
    return Param("one of " + ", ".join(names), lambda value: isinstance(value, str) and value in names, default)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_whole(0).accepts(each) for each in value)


_SIZE = {"size_bytes": _whole(0)}
_WHERE = ("front", "middle", "back", "random")
_NEW = {"size_bytes": _whole(1), "content": _one_of("random", "text", default="random")}


GENERATORS: Mapping[str, tuple[Callable[..., Generator], Mapping[str, Param]]] = {
    "random": (RandomPayload, _SIZE),
    "identical": (IdenticalPayload, _SIZE),
    "sparse": (generators.SparsePayload, {
        **_SIZE, "text": Param("a text that is not empty", _is_text, "0123456789abcdef"),
    }),
    "delta": (generators.DeltaPayload, {
        **_SIZE, "percent": _share(), "where": _one_of("front", "middle", "back", "spread", default="front"),
    }),
    "text": (generators.TextPayload, _SIZE),
    "compressible": (generators.CompressiblePayload, {
        **_SIZE, "ratio": _share(), "chunk_bytes": _whole(1, default=4 * KIB),
    }),
    "duplicated": (generators.DuplicatedPayload, {
        **_SIZE, "ratio": _share(), "block_bytes": _whole(1, default=4 * KIB),
    }),
    "jpeg": (generators.JpegPayload, {"size_bytes": _whole(jpeg.MIN_BYTES)}),
    "fake_jpeg": (generators.FakeJpegPayload, _SIZE),
}  # fmt: skip
"""Name to how it is made and what it takes; ``mixed`` is made of these."""

SIZES: Mapping[str, tuple[Callable[..., Sizes], Mapping[str, Param]]] = {
    "fixed": (FixedSize, _SIZE),
    "uniform": (UniformSizes, {"min_bytes": _whole(0), "max_bytes": _whole(0)}),
    "lognormal": (LognormalSizes, {
        "median_bytes": _whole(1), "sigma": _not_negative(),
        "min_bytes": _whole(0, default=0), "max_bytes": _whole(0, default=2**40),
    }),
    "empirical": (EmpiricalSizes, {
        "sizes_bytes": Param("a list of sizes", _are_sizes, None), "file": Param("a file name", _is_text, None),
    }),
}  # fmt: skip
"""Distributions of ``mixed``, by name."""

EDITS: Mapping[str, Mapping[str, Param]] = {
    "append": _NEW,
    "prepend": _NEW,
    "insert": {**_NEW, "where": _one_of(*_WHERE, default="random")},
    "overwrite": {**_NEW, "where": _one_of(*_WHERE, default="random")},
    "truncate": {"keep_bytes": _whole(0)},
}
"""Edits by name."""

UPDATES: Mapping[str, tuple[Callable[..., Iterator[tuple[float, edits.Edit]]], Mapping[str, Param]]] = {
    "byte_appends": (edits.appends, {
        "interval_s": _positive(1.0), "block_bytes": _whole(1, default=1), "until_bytes": _whole(0, default=KIB),
    }),
    "block_appends": (edits.appends, {
        "interval_s": _positive(1.0), "block_bytes": _whole(1, default=50 * KIB),
        "until_bytes": _whole(0, default=5 * MIB),
    }),
    "http_download": (edits.http_download, {
        "size_bytes": _whole(0, default=5 * MIB), "rate_bytes_per_s": _positive(10_000.0),
        "write_bytes": _whole(1, default=4 * KIB),
    }),
    "two_users": (edits.two_users, {
        "duration_s": _positive(3600.0), "max_interval_s": _positive(10.0), "max_edit_bytes": _whole(1, default=10),
        "users": _whole(1, default=2),
    }),
}  # fmt: skip
"""Update streams by name."""


def make_generator(
    name: str, params: Mapping[str, Any], seed: str, read_text: Callable[[str], str] | None = None
) -> Generator:
    """See ``payload.generator``."""
    if name == "mixed":
        return _mixed(params, seed, read_text)
    build, known = _known("payload", name, GENERATORS, "mixed")
    return build(seed, **_values(f"payload {name}", params, known))


def make_edit(name: str, params: Mapping[str, Any], seed: str) -> edits.Edit:
    """An edit of an existing file. Raises UsageError that names the wrong key."""
    values = _values(f"edit {name}", params, _known("edit", name, EDITS))
    if name == "truncate":
        return edits.Truncate(**values)
    new: Content = (Text if values["content"] == "text" else RandomContent)(seed, values["size_bytes"])
    if name == "overwrite":
        return edits.Overwrite(new, values["where"], seed)
    return edits.Insert(new, {"append": "back", "prepend": "front"}.get(name) or values["where"], seed)


def make_updates(name: str, params: Mapping[str, Any], seed: str) -> Iterator[tuple[float, edits.Edit]]:
    """A stream of (due_s, edit). Raises UsageError that names the wrong key, before the first of them."""
    build, known = _known("updates", name, UPDATES)
    return build(seed, **_values(f"updates {name}", params, known))


def _mixed(params: Mapping[str, Any], seed: str, read_text: Callable[[str], str] | None) -> Generator:
    what = "payload mixed"
    given = dict(params)
    make = _maker(given.pop("content", "random"))
    named = given.pop("distribution", None)
    if isinstance(named, str):
        build, known = _known(f"{what}: distribution", named, SIZES)
        values = _values(f"{what}, distribution {named}", given, known)
        if named == "empirical":
            sizes: Sizes = _empirical(what, values, read_text)
        else:
            try:
                sizes = build(**values)
            except UsageError as error:
                raise UsageError(f"{what}, distribution {named}: {error}") from None
    elif hasattr(named, "draw"):
        _values(what, given, {})
        sizes = named
    else:
        raise UsageError(f"{what}: distribution is {named!r}; expected one of {', '.join(SIZES)}")
    make(sizes.least_bytes, seed)  # a size that the content cannot have is reported now, not in the middle of a run
    return generators.MixedPayload(seed, sizes, make)


def _maker(content: Any) -> Callable[[int, str], Generator]:
    """``content`` is a generator's name, or a table of its name and parameters but for the size."""
    params = dict(content) if isinstance(content, Mapping) else {"generator": content}
    name = params.pop("generator", None)
    if not isinstance(name, str) or name not in GENERATORS:
        raise UsageError(f"payload mixed: content is {content!r}; expected one of {', '.join(GENERATORS)}, "
                         "or a table with generator and its parameters")  # fmt: skip
    if "size_bytes" in params:
        raise UsageError("payload mixed: content: size_bytes comes from the distribution; leave it out")
    return partial(_of_size, name, tuple(params.items()))


def _of_size(name: str, params: tuple[tuple[str, Any], ...], size_bytes: int, seed: str) -> Generator:
    return make_generator(name, {**dict(params), "size_bytes": size_bytes}, seed)


def _empirical(what: str, values: Mapping[str, Any], read_text: Callable[[str], str] | None) -> Sizes:
    listed, file = values["sizes_bytes"], values["file"]
    if (listed is None) == (file is None):
        raise UsageError(f"{what}, distribution empirical: expected either sizes_bytes or file")
    if listed is not None:
        return EmpiricalSizes(tuple(listed))
    if read_text is None:
        raise UsageError(f"{what}, distribution empirical: file cannot be read here; use EmpiricalSizes.parse")
    try:
        text = read_text(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{what}, distribution empirical: file is {file!r}; cannot be read: {error}") from error
    return EmpiricalSizes.parse(text, file)


def _known(what: str, name: object, table: Mapping[str, _T], *more: str) -> _T:
    if not isinstance(name, str) or name not in table:
        raise UsageError(f"{what} {name!r} is not known; known are {', '.join([*table, *more])}")
    return table[name]


def _values(what: str, given: Mapping[str, Any], known: Mapping[str, Param]) -> dict[str, Any]:
    for key in given:
        if key not in known:
            raise UsageError(f"{what}: {key} is not a parameter of it; known are {', '.join(known) or 'none'}")
    return {key: param.read(what, key, given) for key, param in known.items()}
