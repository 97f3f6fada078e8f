"""Removing secrets from texts, in whatever encoding a server or a library echoes them.

What may live here: what this process knows to be secret, and finding it. Pure except for that knowledge: code that
loads a credential or is issued one calls ``learn``, and everything shown to people or other processes passes ``clean``.
From the first ``learn`` on, log records pass it too, whoever logs them.

A secret is found as it is, and percent-encoded, escaped as in JSON, Python or HTML (any of its characters, also twice),
in hexadecimal and in base64 of both alphabets, wherever in the encoded text it begins. Of a long one its beginning or
its end is enough, because what is shown to people is often cut.

One of less than eight characters could be a word: it is found as it is and where it stands alone, and one of less than
four is not looked for.

What a session has learned ends with it: the plugin, and the fixtures of our own tests, begin a scope before it
and end it afterwards. An agent's process has one session, so the same holds there.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html.entities import codepoint2name
from typing import Any

MASK = "***"
"""What is shown instead."""
TAKEN_OUT = "scrubbed"
"""What stands for a secret in a file that people share. A replay logs in with it, and it is no secret."""

_WORD_CHARACTERS = 8
_LEAST_CHARACTERS = 4
_ANCHOR_UNITS = 12
"""This many characters of its beginning, or of its end, are enough to recognise a longer secret."""
_WHOLE_UNITS = 256

# What the special character of an escape may itself look like, when one encoding is put into another.
_PERCENT = r"%(?:25)*"
_BACKSLASH = r"(?:\\|%(?:25)*5[Cc]|&#92;|&#[xX]5[Cc];){1,16}"
_AMPERSAND = r"(?:&|\\{1,16}u0026|%(?:25)*26)(?:amp;)*"
_TOKEN_CHARACTER = re.compile(r"[A-Za-z0-9._~+/=%\\-]")

_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORD = re.compile(
    r"(?!bypass|compass)\w*pass|pwd|\w*(?:password|passwd|passphrase|passcode|secret|credential)s?|\w*token"
)
_LAST_SECRET_WORD = re.compile(
    r"(?:|api|access|account|app|auth|master|private|secret|shared)keys?|auth|authorization|cookie|delegation|sas|"
    r"signature"
)
_FORMS = frozenset("ascii base content data hash hex json md pem sha text value".split())
"""Words that end a name and say only how its value is written. Digits are left out before."""
_DESCRIBING = frozenset(
    "algorithm arn bits count dir endpoint env expiry field file folder format helper id ids length method mode name "
    "path policy prefix provider scope size store strategy suffix timeout ttl type uri url username version".split()
)
"""Words that end a name of something public: where a secret is, which one it is, or of which kind."""


def names_secret(name: str) -> bool:
    """Return whether the value of a setting or an environment variable is secret, to judge by its name.

    Only for names that nobody has declared: a driver says in ``CredentialSet.public`` which of its fields are not.
    Of ``secret_id``, which some services publish and others do not, it says yes.
    """
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    while len(words) > 1 and words[-1] in _FORMS:
        words.pop()
    if not words or "public" in words:
        return False
    if words[-2:] in (["connection", "string"], ["secret", "id"]):
        return True
    if words[-1] in _DESCRIBING:
        return False
    return bool(_LAST_SECRET_WORD.fullmatch(words[-1]) or any(map(_SECRET_WORD.fullmatch, words)))


@cache
def _character(character: str) -> str:
    """The pattern of one character in all its forms."""
    if character.startswith("\\"):
        return rf"(?:{_BACKSLASH}|u005[Cc]|x5[Cc]){{1,64}}".replace("{1,16}", "")
    code = ord(character)
    name = "apos" if character == "'" else codepoint2name.get(code)
    forms = [
        re.escape(character),
        "".join(f"{_PERCENT}{_any_case(f'{byte:02x}')}" for byte in character.encode("utf-8", "surrogatepass")),
        f"{_BACKSLASH}u{_any_case(f'{code:04x}')}" if code < 0x10000 else "",
        f"{_BACKSLASH}x{_any_case(f'{code:02x}')}" if code < 0x100 else "",
        f"{_AMPERSAND}#(?:0*{code}|[xX]0*{_any_case(f'{code:x}')});?",
        f"{_AMPERSAND}{name};" if name else "",
    ]
    before = "" if character.isalnum() else f"(?:{_BACKSLASH})?"
    return f"{before}(?:{'|'.join(form for form in forms if form)})"


@cache
def _base64_character(character: str) -> str:
    """One of base64's 64, of which two have another form in URLs."""
    if character.isalnum():
        return character
    return f"(?:{'|'.join(map(_character, '+-' if character == '+' else '/_'))})"


@cache
def _hex_digit(digit: str) -> str:
    return f"[: -]?{_any_case(digit)}"


def _any_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)


@dataclass(frozen=True, slots=True)
class _Needle:
    """One form of a secret: its units, each with the pattern that it is found by."""

    units: Sequence[str]
    pattern: Callable[[str], str]

    def anchor(self, *, escaped: bool, tail: bool = False) -> str:
        """The pattern of its beginning, or of its end: with the first unit plain, or in any other form."""
        units = self.units[-_ANCHOR_UNITS:] if tail else self.units[:_ANCHOR_UNITS]
        first, rest = units[0], "".join(map(self.pattern, units[1:]))
        return (self.pattern(first) if escaped or first in "+/" else re.escape(first)) + rest

    def follow(self, text: str, start: int, end: int) -> int:
        """How far it goes, once its anchor was found: to the secret's own end, or to where the text is cut."""
        units = list(map(self.pattern, self.units))
        # Only a whole pattern tells a plain "&" from the beginning of "&#38;"; long tokens have neither.
        if len(units) <= _WHOLE_UNITS and (whole := re.compile("".join(units)).match(text, start)):
            return whole.end()
        for unit in units[_ANCHOR_UNITS:]:
            found = re.compile(unit).match(text, end)
            if found is None:
                break
            end = found.end()
        return end


def _needles(secret: str) -> Iterator[_Needle]:
    # As many backslashes as there are are one unit: each may be several in an encoding of the text.
    yield _Needle(re.findall(r"\\+|[^\\]", secret, re.DOTALL), _character)
    if len(secret) < _WORD_CHARACTERS:
        return
    data = secret.encode("utf-8", "surrogatepass")
    yield _Needle(data.hex(), _hex_digit)
    for before_bytes in range(3):
        # The characters that hold bits of the secret alone, whatever stands before and after it.
        first, last = -(-8 * before_bytes // 6), 8 * (before_bytes + len(data)) // 6
        encoded = base64.b64encode(bytes(before_bytes) + data + bytes(2)).decode("ascii")
        yield _Needle(encoded[first:last], _base64_character)


class _Redactor:
    """What is known, and the pattern that finds it. Any thread may learn: what is known only grows."""

    def __init__(self) -> None:
        self._needles: list[_Needle] = []
        self.secrets: set[str] = set()
        self._found_by: tuple[int, re.Pattern[str], tuple[list[_Needle], ...]] = 0, re.compile("(?!)"), ()

    def learn(self, secrets: Iterable[str]) -> list[str]:
        """Those that are new."""
        new = [each for each in dict.fromkeys(secrets) if self._is_secret(each)]
        self._needles += [needle for secret in new for needle in _needles(secret)]
        self.secrets.update(new)
        return new

    def _is_secret(self, secret: str) -> bool:
        return len(secret) >= _LEAST_CHARACTERS and secret not in self.secrets and secret != TAKEN_OUT

    @staticmethod
    def _compiled(known: Sequence[_Needle]) -> tuple[int, re.Pattern[str], tuple[list[_Needle], ...]]:
        """How many needles, the pattern, and for each of its groups the needles that begin so; none for the end of one.

        Alternatives that begin with a plain character cost almost nothing where the text has another one; the others
        are tried where the text has what an escape begins with.
        """
        found_by: list[list[_Needle]] = []
        both = []
        for escaped in (False, True):
            anchors: dict[str, list[_Needle]] = {}
            for needle in known:
                if escaped and needle.pattern is not _character:
                    continue  # encoded once more, it still begins with a plain character, or with one of two others
                anchor = needle.anchor(escaped=escaped)
                alone = len(needle.units) < _WORD_CHARACTERS
                anchors.setdefault(rf"(?<!\w){anchor}(?!\w)" if alone else anchor, []).append(needle)
                if len(needle.units) >= 2 * _ANCHOR_UNITS:
                    anchors.setdefault(needle.anchor(escaped=escaped, tail=True), [])
            # Longer ones first: of two secrets that begin alike, all of the longer one is to go.
            order = sorted(anchors, key=len, reverse=True)
            both.append("|".join(f"{anchor}()" for anchor in order))
            found_by += (anchors[anchor] for anchor in order)
        return len(known), re.compile(f"{both[0]}|(?=[%&\\\\])(?:{both[1]})"), tuple(found_by)

    def clean(self, text: str) -> str:
        if not self.secrets:
            return text
        if self._found_by[0] != len(self._needles):
            # Not before it is needed: it takes 10 ms for a token, and most runs show none.
            self._found_by = self._compiled(tuple(self._needles))
        _, pattern, needles_of = self._found_by
        pieces, done = list[str](), 0
        while (found := pattern.search(text, done)) is not None:
            start, end = found.span()
            assert found.lastindex is not None
            needles = needles_of[found.lastindex - 1]
            if not needles:  # an end whose beginning is cut off
                while start > done and _TOKEN_CHARACTER.match(text, start - 1) and text[start - 3 : start] != "...":
                    start -= 1
            end = max((needle.follow(text, start, end) for needle in needles), default=end)
            pieces += text[done:start], MASK
            done = end
        return "".join([*pieces, text[done:]]) if pieces else text


_REDACTOR = _Redactor()
_LISTENERS: list[Callable[[list[str]], object]] = []


@dataclass(frozen=True, slots=True)
class SecretScope:
    """What is secret at one time, and who is told of more; for ``end_scope``. Its ``repr`` shows no secret."""

    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    listeners: tuple[Callable[[list[str]], object], ...] = ()


def begin_scope() -> SecretScope:
    """Return what is secret now, for the ``end_scope`` that forgets what is learned meanwhile."""
    return SecretScope(frozenset(_REDACTOR.secrets), tuple(_LISTENERS))


def end_scope(scope: SecretScope) -> None:
    """Forget what was learned since the scope began. Listeners that came since then are told no more."""
    global _REDACTOR  # noqa: PLW0603 - a new one, because other threads may be using the former one
    _LISTENERS[:] = [listener for listener in _LISTENERS if listener in scope.listeners]
    if not _REDACTOR.secrets <= scope.secrets:
        kept = _Redactor()
        kept.learn(_REDACTOR.secrets & scope.secrets)
        _REDACTOR = kept


def learn(secrets: Iterable[str]) -> None:
    """From now on these are secret in this process, and in those that ``on_learn`` tells, until their scope ends."""
    new = _REDACTOR.learn(secrets)
    if new:
        clean_log()
        for listener in _LISTENERS:
            listener(new)


def on_learn(listener: Callable[[list[str]], object]) -> None:
    """Also report what is learned from now on to ``listener``, such as the process that shows this one's reports."""
    _LISTENERS.append(listener)


def is_needed() -> bool:
    """Whether anything is secret."""
    return bool(_REDACTOR.secrets)


def clean(text: str) -> str:
    """The text with every secret replaced by ``MASK``."""
    return _REDACTOR.clean(text)


def clean_log() -> None:
    """From now on nothing that is logged in this process shows a secret, on whichever handler; safe to call again."""
    former = logging.getLogRecordFactory()
    if getattr(former, "cleans", False):
        return

    def made(*args: Any, **options: Any) -> logging.LogRecord:
        record = former(*args, **options)
        _clean_record(record)
        return record

    made.cleans = True  # type: ignore[attr-defined]  # a mark by which it is known again
    logging.setLogRecordFactory(made)


def _clean_record(record: logging.LogRecord) -> None:
    """A record without a secret is left unchanged."""
    try:
        message = record.getMessage()
    except Exception:  # it does not fit its arguments, which whoever formats it says, and shows both
        record.msg = _cleaned(record.msg)
        record.args = tuple(clean(str(each)) for each in record.args or ())
    else:
        if (told := clean(message)) != message:
            record.msg, record.args = told, ()
    if record.exc_info and record.exc_info[0] is not None:
        shown = logging.Formatter().formatException(record.exc_info)
        if (told := clean(shown)) != shown:
            record.exc_text, record.exc_info = told, None
    if record.stack_info:
        record.stack_info = clean(record.stack_info)


def _cleaned(value: Any) -> Any:
    """The value with all texts in it cleaned; lists and tables are changed in place."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes):
        text = value.decode("latin-1")
        return value if (told := clean(text)) == text else told.encode("latin-1")
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_cleaned, value))
    if isinstance(value, list):
        value[:] = map(_cleaned, value)
    elif isinstance(value, dict):
        value.update({key: _cleaned(each) for key, each in value.items()})
    return value


def clean_error(error: BaseException) -> None:
    """Take secrets out of an error, its causes and its notes, and out of what pytest would show of their frames.

    An SDK's frames hold the authorization header in local variables, which ``pytest -l`` prints; they also keep the
    payload of every failed upload in memory.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        one.args = _cleaned(one.args)
        if isinstance(one, OSError):  # these are in no ``__dict__``
            one.strerror = _cleaned(one.strerror)
            if one.filename is not None:
                one.filename = _cleaned(one.filename)
        for name, value in list(vars(one).items()):
            if isinstance(value, (str, bytes, list, dict, tuple)):
                setattr(one, name, _cleaned(value))
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def clean_report(report: Any) -> None:
    """Take secrets out of a test's or a collector's report: traceback or text, captured output and logs, properties."""
    if not is_needed():
        return
    report.sections = [(clean(title), clean(text)) for title, text in report.sections]
    if hasattr(report, "user_properties"):
        report.user_properties = _cleaned(list(report.user_properties))
    report.longrepr = clean_shown(report.longrepr)


def clean_shown(value: Any) -> Any:
    """What pytest is about to show, such as an error's page: its own objects are cleaned in place."""
    return _shown(value, set()) if is_needed() else value


def _shown(value: Any, seen: set[int]) -> Any:
    """What pytest shows, cleaned: texts, sequences and its own objects that are made of these."""
    if isinstance(value, (str, bytes)):
        return _cleaned(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_shown(each, seen) for each in value)
    if isinstance(value, list):
        value[:] = [_shown(each, seen) for each in value]
    elif type(value).__module__.startswith("_pytest.") and id(value) not in seen:
        seen.add(id(value))
        for name, each in list(vars(value).items()):
            object.__setattr__(value, name, _shown(each, seen))
    return value
