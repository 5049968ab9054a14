"""The model's name in remote answers, however they are cut into pieces."""

from __future__ import annotations

import pytest

from router.web.renaming import _LONG_LINE, _LONGEST, Renaming

STREAM = (
    b': hello "model":1\n\n'
    b'event: x\r\ndata: {"id":"a","model" : "big","n":1,"text":"\\"model\\":\\"no\\""}\r\n\r\n'
    b'data: {"type":"message_start","message":{"model":"a\\"b\\\\"}}\n\n'
    b'data: {"choices":[]}\n\n'
    b'data: {"model":"big","nested":{"model":"kept"}}\n\n'
    b"data: [DONE]\n\n"
)
RENAMED = (
    b': hello "model":1\n\n'
    b'event: x\r\ndata: {"id":"a","model" : "p/big","n":1,"text":"\\"model\\":\\"no\\""}\r\n\r\n'
    b'data: {"type":"message_start","message":{"model":"p/big"}}\n\n'
    b'data: {"choices":[]}\n\n'
    b'data: {"model":"p/big","nested":{"model":"kept"}}\n\n'
    b"data: [DONE]\n\n"
)


def through(data: bytes, size: int, *, events: bool) -> bytes:
    """What comes of data in pieces of that size."""
    renaming = Renaming("p/big", events=events)
    parts = [renaming.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return b"".join(parts) + renaming.flush()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 64, 10_000])
def test_each_event_of_a_stream(size: int) -> None:
    assert through(STREAM, size, events=True) == RENAMED


@pytest.mark.parametrize("cut", range(len(b'{"model":"x') + 1))
def test_a_whole_answer_cut_anywhere(cut: int) -> None:
    filler = b'{"data":[' + b"0.5," * 2_000 + b"0.5],"
    data = filler + b'"model":"x","usage":{"model":"kept"}}'
    renaming = Renaming("p/big", events=False)
    at = len(filler) + cut
    out = renaming.feed(data[:at]) + renaming.feed(data[at:]) + renaming.flush()
    assert out == filler + b'"model":"p/big","usage":{"model":"kept"}}'


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_an_answer_without_a_name_passes(size: int) -> None:
    data = b'{"data":[' + b"1," * 3_000 + b'"a \\"model\\":\\"b\\""]}'
    assert through(data, size, events=False) == data
    assert through(b"", size, events=False) == b""


def test_events_go_on_as_soon_as_they_are_whole() -> None:
    renaming = Renaming("p/big", events=True)
    assert renaming.feed(b'data: {"model":"big"}\n') == b'data: {"model":"p/big"}\n'
    assert renaming.feed(b'\ndata: {"mod') == b"\n"
    assert renaming.feed(b'el":"big"}\n\n') == b'data: {"model":"p/big"}\n\n'
    assert renaming.flush() == b""


def test_what_is_held_back_is_bounded() -> None:
    line = b'data: {"model":"big","x":"' + b"x" * (3 * _LONG_LINE) + b'"}\n\n'
    renaming = Renaming("p/big", events=True)
    out = b""
    for at in range(0, len(line), 1_000):
        out += renaming.feed(line[at : at + 1_000])
        assert at + 1_000 - len(out) <= _LONG_LINE + 2_000
    assert out + renaming.flush() == line.replace(b'"big"', b'"p/big"')
    assert renaming.feed(b'data: {"model":"big"}\n\n') == b'data: {"model":"p/big"}\n\n'
    whole = Renaming("p/big", events=False)
    assert len(whole.feed(b"1," * 100_000)) == 200_000 - _LONGEST
