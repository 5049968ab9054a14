"""ECMAScript's regular expressions. What matches what is in the golden cases; here is the rest."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy import ecma
from router.policy.ecma import RegexFault, TooSlow, check, search, translate


@pytest.mark.parametrize(
    ("source", "words", "at"),
    [
        ("ab(", "')' is missing", 3),
        ("ab)", "unmatched ')'", 2),
        ("a(b+)*", "repeat without bound within another", 1),
        ("x{2,1}", "out of order", 1),
        ("x{9999999999}", "too large", 1),
        ("[b-a]", "range is out of order", 1),
        ("a|*", "nothing to repeat", 2),
        ("(?>a)", "kind of group", 0),
        (r"(a)\3", "no group 3", 3),
        (r"\k<x>", "no group of that name", 0),
        (r"\u{110000}", "code point", 0),
        (r"\p{Nope}", "no property Nope", 0),
        ("(" * 65 + ")" * 65, "nested more than 64", 64),
        ("()" * 201, "more than 200 groups", None),
        ("(?:(?:a{100}){100}){2}", "too large", None),
    ],
)
def test_a_fault_is_told_with_its_position(source: str, words: str, at: int | None) -> None:
    with pytest.raises(RegexFault, match=re.escape(words)) as caught:
        check(source)
    if at is not None:
        assert str(caught.value).endswith(f"at position {at}")


@pytest.mark.parametrize("source", ["(?:a|aa)+c", "(a|a)*b|(?:a|aa){30}$x", "(?=(?:ab?|a)+z)"])
def test_a_search_ends_in_its_time(source: str) -> None:
    with pytest.raises(TooSlow, match="took longer than"):
        search(source, "a" * 5000, 0.01)


def test_a_search_in_a_thread_lets_others_run() -> None:
    """The main thread goes on while another one searches: it is what ends the search's wait."""
    ready, ended = threading.Event(), threading.Event()

    def look() -> None:
        ready.set()
        with pytest.raises(TooSlow):
            search("(?:a|aa)+c", "a" * 200, 0.2, release=True)
        ended.set()

    thread = threading.Thread(target=look)
    thread.start()
    ready.wait(10)
    steps = 0
    while not ended.is_set():
        steps += 1
    thread.join()
    assert steps > 1000


PLAIN = st.text(alphabet="abxy01 _-é\n", max_size=12)
ATOMS = st.sampled_from(["a", "b", "x", ".", r"\d", r"\w", "[ab]", "[^a]", "(a)", "(?:b|x)", r"\b", "é", "_"])
REPEATS = st.sampled_from(["", "", "", "?", "*", "+", "{1,2}", "*?"])


@given(st.lists(st.tuples(ATOMS, REPEATS), min_size=1, max_size=5), PLAIN)
def test_the_common_part_of_the_dialects_means_the_same(parts: list[tuple[str, str]], text: str) -> None:
    """Where ECMAScript and Python agree once `re` is held to ASCII, Python is the judge."""
    source = "".join(atom + ("" if atom == r"\b" else repeat) for atom, repeat in parts)
    wanted = re.search(source, text, re.ASCII) is not None
    assert search(source, text, 1.0) == wanted


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_a_fault(source: str) -> None:
    try:
        check(source)
    except RegexFault:
        return
    search(source, "some text", 1.0)


@given(st.text(min_size=1, max_size=20), st.text(max_size=10))
def test_escaped_text_finds_itself(text: str, around: str) -> None:
    source = "".join(f"\\u{{{ord(char):x}}}" for char in text)
    assert search(source, around + text + around, 1.0)


def test_a_translation_shows_what_it_means() -> None:
    assert translate("^a.$") == r"\Aa[\u0000-\u0009\u000b-\u000c\u000e-\u2027\u202a-\U0010ffff]\Z"
    assert translate(r"(a)|\1") == r"(a)|(?(1)\1|)"


def test_patterns_are_compiled_once() -> None:
    ecma._compiled.cache_clear()
    for _ in range(3):
        search("once", "x", 1.0)
    assert ecma._compiled.cache_info().misses == 1
