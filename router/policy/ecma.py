"""Regular expressions in ECMAScript's dialect, run by the package `regex`.

A pattern is parsed here, whole, and written anew in terms that mean the same to that package: what ECMAScript
means by `$`, `.`, `\\d`, `\\b`, an empty class or a back-reference to a group that took no part differs from
what Python means by it. The dialect is that of a pattern without flags, read by code points, with the escapes
`\\u{...}` and `\\p{...}` besides. docs/adr/0007-regular-expressions.md has the reasons.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct

if TYPE_CHECKING:
    import regex

MAX_GROUPS: Final = 200
MAX_DEPTH: Final = 64
MAX_WEIGHT: Final = 10_000
"""Bounds on a pattern: what repeats at least n times counts n times, since the engine writes it out."""

_LAST: Final = 0x10FFFF
_Ranges = tuple[tuple[int, int], ...]

_DIGIT: Final[_Ranges] = ((0x30, 0x39),)
_WORD: Final[_Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[_Ranges] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_BOUNDARY: Final = r"(?a:\b)"
_NO_BOUNDARY: Final = r"(?a:\B)"
_LINE_END: Final[_Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CONTROLS: Final = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
_QUANTIFIER: Final = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_NAME: Final = re.compile(r"<([^\W\d][\w$]*|[$][\w$]*)>")
_PROPERTY: Final = re.compile(r"\{\^?([A-Za-z_]+(?:=[A-Za-z0-9_]+)?)\}")


class RegexFault(ValueError):
    """A pattern that cannot be used; the text says why, and where."""


class TooSlow(TimeoutError):
    """A search took longer than it was given."""


def check(source: str) -> None:
    """Read a pattern.

    Raises:
        RegexFault: it is none, or it could take for ever.
    """
    _compiled(source)


def search(source: str, text: str, budget_s: float, *, release: bool = False) -> bool:
    """Whether the pattern is found in the text.

    Args:
        budget_s: seconds after which to give up.
        release: let other threads run meanwhile; for a search that is itself in a thread.

    Raises:
        RegexFault: see `check`.
        TooSlow: the time is over.
    """
    try:
        return _compiled(source).search(text, timeout=budget_s, concurrent=release) is not None
    except TimeoutError as error:
        raise TooSlow(f"the regular expression {source[:80]!r} took longer than {budget_s:g} s") from error
    except MemoryError as error:
        raise TooSlow(f"the regular expression {source[:80]!r} took too much memory") from error


@functools.lru_cache(maxsize=4096)
def _compiled(source: str) -> regex.Pattern[str]:
    import regex  # only where a policy has such a pattern

    translated = translate(source)
    try:
        return regex.compile(translated, regex.V0, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError) as error:
        raise RegexFault(f"it is no regular expression: {error}") from error


def translate(source: str) -> str:
    """The pattern in the terms of the package `regex`.

    Raises:
        RegexFault: see `check`.
    """
    return _Parser(source).parse()


class _Part(Struct, frozen=True):
    """A piece of a pattern: its translation, whether something in it repeats without bound, its weight."""

    text: str
    unbounded: bool = False
    weight: int = 1


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0
        self._behind = 0
        self._opened = 0
        self._closed: set[int] = set()
        self._count, self._names = _groups(source)

    def parse(self) -> str:
        whole = self._disjunction()
        if self._at < len(self._source):
            self._fail("unmatched ')'")
        return whole.text

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        raise RegexFault(f"{what} at position {self._at if at is None else at}")

    def _peek(self, text: str) -> bool:
        return self._source.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _next(self, what: str) -> str:
        if self._at >= len(self._source):
            self._fail(f"the pattern ends within {what}")
        self._at += 1
        return self._source[self._at - 1]

    # Structure

    def _disjunction(self) -> _Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups are nested more than {MAX_DEPTH} deep")
        branches = [self._alternative()]
        while self._take("|"):
            branches.append(self._alternative())
        self._depth -= 1
        return _Part(
            "|".join(b.text for b in branches),
            any(b.unbounded for b in branches),
            sum(b.weight for b in branches),
        )

    def _alternative(self) -> _Part:
        texts: list[str] = []
        unbounded, weight = False, 0
        while self._at < len(self._source) and not self._peek("|") and not self._peek(")"):
            term = self._term()
            texts.append(term.text)
            unbounded = unbounded or term.unbounded
            weight += term.weight
            if weight > MAX_WEIGHT:
                self._fail("the pattern is too large: its repeats ask for too many steps")
        return _Part("".join(texts), unbounded, weight)

    def _term(self) -> _Part:
        start = self._at
        assertion = self._assertion()
        if assertion is not None:
            if self._quantifier() is not None:
                self._fail("nothing to repeat", start)
            return assertion
        atom = self._atom()
        repeat = self._quantifier()
        if repeat is None:
            return atom
        text, least, most = repeat
        if most is None and atom.unbounded:
            self._fail("a repeat without bound within another one could take for ever", start)
        weight = atom.weight * max(1, least)
        return _Part(f"(?:{atom.text}){text}", atom.unbounded or most is None, weight)

    def _quantifier(self) -> tuple[str, int, int | None] | None:
        """Its translation, and how often it repeats; None where there is none."""
        start = self._at
        least, most = 0, None
        if self._take("*"):
            pass
        elif self._take("+"):
            least = 1
        elif self._take("?"):
            most = 1
        else:
            found = _QUANTIFIER.match(self._source, self._at)
            if found is None:
                return None
            self._at = found.end()
            if max(len(found[1]), len(found[3] or "")) > 9:
                self._fail("a repeat count is too large", start)
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else None
            if most is not None and most < least:
                self._fail("the numbers of a repeat are out of order", start)
        lazy = "?" if self._take("?") else ""
        bounds = f"{{{least},{'' if most is None else most}}}"
        return bounds + lazy, least, most

    def _assertion(self) -> _Part | None:
        if self._take("^"):
            return _Part(r"\A")
        if self._take("$"):
            return _Part(r"\Z")
        if self._take(r"\b"):
            return _Part(_BOUNDARY)
        if self._take(r"\B"):
            return _Part(_NO_BOUNDARY)
        for opening in ("(?=", "(?!", "(?<=", "(?<!"):
            if self._take(opening):
                self._behind += "<" in opening
                inner = self._disjunction()
                self._behind -= "<" in opening
                self._close()
                return _Part(f"{opening}{inner.text})", inner.unbounded, inner.weight)
        return None

    def _close(self) -> None:
        if not self._take(")"):
            self._fail("a ')' is missing")

    def _atom(self) -> _Part:
        start = self._at
        char = self._next("an atom")
        if char == "(":
            return self._group(start)
        if char == "[":
            return _Part(self._class(start))
        if char == ".":
            return _Part(_set(_except(_LINE_END)))
        if char == "\\":
            return self._escape(start)
        if char in "*+?":
            self._fail("nothing to repeat", start)
        if char == "{" and _QUANTIFIER.match(self._source, start):
            self._fail("nothing to repeat", start)
        return _Part(_literal(ord(char)))

    def _group(self, start: int) -> _Part:
        if self._take("?:"):
            inner = self._disjunction()
            self._close()
            return _Part(f"(?:{inner.text})", inner.unbounded, inner.weight)
        if self._peek("?"):
            name = _NAME.match(self._source, self._at + 1)
            if name is None:
                self._fail("this kind of group is not known", start)
            self._at = name.end()
        self._opened += 1
        number = self._opened
        inner = self._disjunction()
        self._close()
        self._closed.add(number)
        return _Part(f"({inner.text})", inner.unbounded, inner.weight)

    # Escapes

    def _escape(self, start: int) -> _Part:
        char = self._next("an escape")
        if char in "123456789":
            digits = char
            while self._at < len(self._source) and self._source[self._at] in "0123456789":
                digits += self._next("an escape")
            return self._reference(int(digits[:6]), start)
        if char == "k":
            name = _NAME.match(self._source, self._at)
            if name is None or name[1] not in self._names:
                self._fail("there is no group of that name", start)
            self._at = name.end()
            return self._reference(self._names[name[1]], start)
        ranges = self._class_escape(char)
        if ranges is not None:
            return _Part(_set(ranges))
        if char in "pP":
            return _Part(self._property(char, start))
        return _Part(_literal(self._character(char, start)))

    def _reference(self, number: int, start: int) -> _Part:
        if number > self._count:
            self._fail(f"there is no group {number}", start)
        if number not in self._closed:
            # A group that has not ended yet, or comes later, is empty wherever a reference can see it.
            if self._behind:
                self._fail("a reference within (?<= to a group after it is not supported", start)
            return _Part("(?:)")
        # A group that took no part matches the empty text.
        return _Part(f"(?({number})\\{number}|)")

    @staticmethod
    def _class_escape(char: str) -> _Ranges | None:
        ranges = {"d": _DIGIT, "w": _WORD, "s": _SPACE}.get(char.lower())
        if ranges is None:
            return None
        return ranges if char.islower() else _except(ranges)

    def _property(self, char: str, start: int) -> str:
        found = _PROPERTY.match(self._source, self._at)
        if found is None or "^" in found[0]:
            self._fail(r"\p and \P are followed by a property in braces", start)
        self._at = found.end()
        import regex

        written = f"\\{char}{{{found[1]}}}"
        try:
            regex.compile(written)
        except regex.error:
            self._fail(f"there is no property {found[1]}", start)
        return written

    def _character(self, char: str, start: int) -> int:
        """The code point that an escape stands for."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "0":
            if self._at < len(self._source) and self._source[self._at].isdecimal():
                self._fail("octal escapes are not supported", start)
            return 0
        if char == "c":
            letter = self._next("an escape")
            if not (letter.isascii() and letter.isalpha()):
                self._fail(r"\c is followed by a letter", start)
            return ord(letter) % 32
        if char == "x":
            return self._hex(2, start)
        if char == "u":
            return self._unicode(start)
        # Any other character stands for itself.
        return ord(char)

    def _unicode(self, start: int) -> int:
        if self._take("{"):
            end = self._source.find("}", self._at)
            digits = self._source[self._at : end] if end >= 0 else ""
            if not re.fullmatch("[0-9A-Fa-f]+", digits) or int(digits, 16) > _LAST:
                self._fail(r"\u{ is followed by a code point in hexadecimal digits and }", start)
            self._at = end + 1
            return int(digits, 16)
        first = self._hex(4, start)
        if 0xD800 <= first < 0xDC00 and self._peek(r"\u"):
            back = self._at
            self._at += 2
            if not self._peek("{"):
                second = self._hex(4, start)
                if 0xDC00 <= second < 0xE000:
                    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            self._at = back
        return first

    def _hex(self, count: int, start: int) -> int:
        digits = self._source[self._at : self._at + count]
        if not re.fullmatch(f"[0-9A-Fa-f]{{{count}}}", digits):
            self._fail(f"an escape lacks its {count} hexadecimal digits", start)
        self._at += count
        return int(digits, 16)

    # Classes

    def _class(self, start: int) -> str:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        properties: list[str] = []
        while not self._take("]"):
            if self._at >= len(self._source):
                self._fail("a ']' is missing", start)
            place = self._at
            low = self._class_atom(properties)
            if not (self._peek("-") and not self._peek("-]")):
                ranges += low
                continue
            self._at += 1
            high = self._class_atom(properties)
            if len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]:
                if low[0][0] > high[0][0]:
                    self._fail("a range is out of order", place)
                ranges.append((low[0][0], high[0][0]))
            else:
                # A hyphen beside a class such as \d stands for itself.
                ranges += (*low, (0x2D, 0x2D), *high)
        if not properties:
            whole = _merged(ranges)
            return _set(_except(whole) if negated else whole)
        return f"[{'^' if negated else ''}{_written(_merged(ranges))}{''.join(properties)}]"

    def _class_atom(self, properties: list[str]) -> list[tuple[int, int]]:
        start = self._at
        char = self._next("a class")
        if char != "\\":
            return [(ord(char), ord(char))]
        char = self._next("an escape")
        ranges = self._class_escape(char)
        if ranges is not None:
            return list(ranges)
        if char in "pP":
            properties.append(self._property(char, start))
            return []
        if char == "b":
            return [(8, 8)]
        if char in "123456789Bk":
            self._fail(f"\\{char} has no meaning within a class", start)
        code = self._character(char, start)
        return [(code, code)]


def _groups(source: str) -> tuple[int, dict[str, int]]:
    """How many groups capture, and the numbers of those with a name."""
    count, names, at, in_class = 0, dict[str, int](), 0, False
    while at < len(source):
        char = source[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "(":
            name = _NAME.match(source, at + 2) if source.startswith("(?<", at) else None
            if name is not None or not source.startswith("(?", at):
                count += 1
            if name is not None:
                if name[1] in names:
                    raise RegexFault(f"two groups have the name {name[1]} at position {at}")
                names[name[1]] = count
        at += 1
    if count > MAX_GROUPS:
        raise RegexFault(f"it has more than {MAX_GROUPS} groups")
    return count, names


def _literal(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}"


def _merged(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    """The same code points, in order and without overlaps."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _except(ranges: _Ranges) -> _Ranges:
    """All other code points."""
    gaps: list[tuple[int, int]] = []
    after = 0
    for low, high in ranges:
        if low > after:
            gaps.append((after, low - 1))
        after = high + 1
    if after <= _LAST:
        gaps.append((after, _LAST))
    return tuple(gaps)


def _written(ranges: _Ranges) -> str:
    return "".join(_literal(a) if a == b else f"{_literal(a)}-{_literal(b)}" for a, b in ranges)


def _set(ranges: _Ranges) -> str:
    """A class of the code points; one that is empty matches nowhere."""
    return f"[{_written(ranges)}]" if ranges else "(?!)"
