"""Answers in OpenAI's form, and what they are in Ollama's: whole, or line by line as they come.

A stream of events becomes a stream of JSON lines. Bytes are looked at as they come, and only whole lines are
decoded, so that no character is ever split; what is held back is bounded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from router.errors import RouterError
from router.web.shapes import OLLAMA, body_of
from router.web.sse import Counts, Events, Timings
from router.web.upstream import BadAnswer

NDJSON: Final = "application/x-ndjson"

_DONE: Final = b"[DONE]"
_LENGTH: Final = "length"
#: Most calls of tools in one answer, and most characters of their arguments, all together.
_MOST_CALLS: Final = 256
_MOST_ARGUMENTS: Final = 16 << 20


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Said(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Logprobs(Struct, frozen=True):
    content: list[Any] | None = None


class _Choice(Struct, frozen=True):
    """`message` in a whole answer, `delta` in a part of one, `text` in both for a text that goes on."""

    message: _Said | None = None
    delta: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    @property
    def said(self) -> _Said:
        return self.message or self.delta or _Said(self.text)


class _Answer(Struct, frozen=True):
    """A whole answer, or an event of one. `content` and `stop_type` are the engine's own form."""

    choices: list[_Choice] | None = None
    usage: Counts | None = None
    timings: Timings | None = None
    error: Raw | UnsetType = UNSET
    content: str | None = None
    stop_type: str | None = None

    @property
    def choice(self) -> _Choice | None:
        """What it says; None if it says nothing."""
        if self.choices:
            return self.choices[0]
        if self.content is None:
            return None
        finish = {"limit": _LENGTH, "eos": "stop", "word": "stop"}.get(self.stop_type or "")
        return _Choice(text=self.content, finish_reason=finish)


class _Vector(Struct, frozen=True):
    embedding: list[float]


class _Vectors(Struct, frozen=True):
    data: list[_Vector]
    usage: Counts | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode
_decode_vectors: Final = msgspec.json.Decoder(_Vectors).decode
_encode: Final = msgspec.json.Encoder().encode


def timestamp(seconds: float | None = None) -> str:
    """A time in RFC 3339, in UTC: now, or so many seconds after the epoch."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Timed:
    """When a request came, when its model was there, and which model answers."""

    def __init__(self, model: str, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.model = model
        self._clock = clock
        self._came = clock()
        self._began = self._came

    def begin(self, model: str | None = None) -> None:
        """The model is there, and is asked now. `model` is its name, where the client named a policy."""
        self._began = self._clock()
        if model is not None:
            self.model = model

    def durations(self) -> dict[str, int]:
        """Nanoseconds of all, and of waiting for the model."""
        return {"total_duration": self._clock() - self._came, "load_duration": self._began - self._came}


class TextAnswer(Timed):
    """The answer to a chat, or with `of_chat` false to a generate.

    `with_thinking` false leaves the model's thoughts out.
    """

    def __init__(
        self,
        model: str,
        *,
        of_chat: bool,
        with_thinking: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(model, clock)
        self._of_chat = of_chat
        self._with_thinking = with_thinking
        self._events = Events()
        self._calls: dict[int, _Pending] = {}
        self._finish = ""
        self._usage: Counts | None = None
        self._timings: Timings | None = None
        self._failed = False
        self._broken: BadAnswer | None = None

    def whole(self, body: bytes) -> bytes:
        """The whole answer.

        Raises:
            BadAnswer: it is none.
        """
        try:
            answer = _decode(body)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise BadAnswer(f"The worker's answer cannot be read: {exc}") from None
        choice = answer.choice
        if choice is None:
            raise BadAnswer("The worker's answer says nothing.")
        self._note(answer, choice)
        self._collect(choice.said.tool_calls or ())
        text, calls = self._take_calls()
        said = choice.said
        return _encode(
            self._line((said.content or "") + text, said.reasoning_content, calls, choice.logprobs, done=True)
        )

    def feed(self, data: bytes) -> bytes:
        """The lines that a fragment of the stream completes.

        Raises:
            BadAnswer: what came is no answer, or one event is too large.
        """
        self._raise_broken()
        lines: list[bytes] = []
        try:
            for event in self._events.feed(data):
                lines.append(self._event(event))
        except BadAnswer as exc:
            if not any(lines):
                raise
            # What came before it goes out first.
            self._broken = exc
        return b"".join(lines)

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def ending(self) -> bytes:
        """The lines that end it, with the counts; only for a stream that came to its end."""
        self._raise_broken()
        lines = [self._event(event) for event in self._events.flush()]
        if not self._failed:
            text, calls = self._take_calls()
            if text or calls:
                lines.append(_encode(self._line(text, None, calls, None)) + b"\n")
            lines.append(_encode(self._line("", None, (), None, done=True)) + b"\n")
        return b"".join(lines)

    def failure(self, error: RouterError) -> bytes:
        """The line that ends it if it fails; nothing if the engine has told of an error itself."""
        if self._failed:
            return b""
        self._failed = True
        return _encode(body_of(error, OLLAMA)) + b"\n"

    def _event(self, event: bytes) -> bytes:
        if event == _DONE or self._failed:
            return b""
        try:
            answer = _decode(event)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise BadAnswer(f"The worker's stream cannot be read: {exc}") from None
        if answer.error is not UNSET and bytes(answer.error) != b"null":
            return self.failure(RouterError(_message(answer.error)))
        choice = answer.choice
        self._note(answer, choice)
        if choice is None:
            return b""
        said = choice.said
        self._collect(said.tool_calls or ())
        thinking = said.reasoning_content if self._with_thinking else None
        if not (said.content or thinking or choice.logprobs):
            return b""
        return _encode(self._line(said.content or "", thinking, (), choice.logprobs)) + b"\n"

    def _note(self, answer: _Answer, choice: _Choice | None) -> None:
        self._usage = answer.usage or self._usage
        self._timings = answer.timings or self._timings
        if choice is not None:
            self._finish = choice.finish_reason or self._finish

    def _collect(self, calls: Sequence[_Call]) -> None:
        for at, part in enumerate(calls):
            index = part.index if part.index or len(calls) == 1 else at
            call = self._calls.setdefault(index, _Pending())
            function = part.function or _Function()
            call.id = part.id or call.id
            call.name += function.name or ""
            call.arguments.append(function.arguments or "")
            call.size += len(function.arguments or "")
            if len(self._calls) > _MOST_CALLS or call.size > _MOST_ARGUMENTS:
                raise BadAnswer("The worker's answer calls too many tools, or with too much.")

    def _take_calls(self) -> tuple[str, list[dict[str, Any]]]:
        """The calls of tools, which are told as a whole. One that is no call after all is text.

        One that the limit of tokens has cut off is left out: nobody could tell what it was to be.
        """
        texts: list[str] = []
        made: list[dict[str, Any]] = []
        for _, call in sorted(self._calls.items()):
            raw = "".join(call.arguments)
            try:
                arguments = msgspec.json.decode(raw or "{}")
            except (msgspec.MsgspecError, RecursionError):
                arguments = None
            if isinstance(arguments, dict) and call.name:
                function = {"index": len(made), "name": call.name, "arguments": arguments}
                made.append({**({"id": call.id} if call.id else {}), "function": function})
            elif self._finish != _LENGTH:
                texts.append(f"{call.name}({raw})")
        self._calls = {}
        return "\n".join(texts), made

    def _line(
        self,
        text: str,
        thinking: str | None,
        calls: Sequence[Mapping[str, Any]],
        logprobs: _Logprobs | None,
        *,
        done: bool = False,
    ) -> dict[str, Any]:
        line: dict[str, Any] = {"model": self.model, "created_at": timestamp()}
        told = {"thinking": thinking} if thinking and self._with_thinking else {}
        if self._of_chat:
            line["message"] = {
                "role": "assistant",
                "content": text,
                **told,
                **({"tool_calls": calls} if calls else {}),
            }
        else:
            line |= {"response": text, **told}
        if logprobs is not None and logprobs.content:
            line["logprobs"] = logprobs.content
        line["done"] = done
        if done:
            line["done_reason"] = _LENGTH if self._finish == _LENGTH else "stop"
            line |= self.durations() | self._counts()
        return line

    def _counts(self) -> dict[str, int]:
        usage, timings = self._usage or Counts(), self._timings or Timings()
        prompt = usage.prompt_tokens or timings.prompt_n + timings.cache_n
        return {
            "prompt_eval_count": int(prompt),
            "prompt_eval_duration": int(timings.prompt_ms * 1e6),
            "eval_count": int(usage.completion_tokens or timings.predicted_n),
            "eval_duration": int(timings.predicted_ms * 1e6),
        }


class _Pending:
    """A call of a tool as far as it has come."""

    __slots__ = ("arguments", "id", "name", "size")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.size = 0


class VectorAnswer(Timed):
    """The answer to an embed; with `single` to the older call, which has one text and one vector.

    `dimensions` cuts each vector to its first ones; 0 leaves it whole.
    """

    def __init__(
        self,
        model: str,
        *,
        single: bool = False,
        dimensions: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(model, clock)
        self._single = single
        self._dimensions = dimensions

    def whole(self, body: bytes) -> bytes:
        """The whole answer.

        Raises:
            BadAnswer: it is none.
        """
        try:
            answer = _decode_vectors(body)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise BadAnswer(f"The worker's answer has no embeddings: {exc}") from None
        vectors = [self._cut(item.embedding) for item in answer.data]
        if self._single:
            return _encode({"embedding": vectors[0] if vectors else []})
        usage = answer.usage or Counts()
        return _encode(
            {
                "model": self.model,
                "embeddings": vectors,
                **self.durations(),
                "prompt_eval_count": usage.prompt_tokens or 0,
            }
        )

    def empty(self) -> bytes:
        """The answer to a request without a text."""
        return _encode(
            {"embedding": []}
            if self._single
            else {"model": self.model, "embeddings": [], **self.durations(), "prompt_eval_count": 0}
        )

    def feed(self, data: bytes) -> bytes:
        """Raises BadAnswer: there is no stream of these."""
        raise BadAnswer("The worker answered with a stream although none was asked for.")

    def ending(self) -> bytes:
        """Nothing: there is no stream of these."""
        return b""

    def failure(self, error: RouterError) -> bytes:
        """The error as a line."""
        return _encode(body_of(error, OLLAMA)) + b"\n"

    def _cut(self, vector: list[float]) -> list[float]:
        if not 0 < self._dimensions < len(vector):
            return vector
        kept = vector[: self._dimensions]
        length = math.sqrt(math.fsum(each * each for each in kept))
        return [each / length for each in kept] if length else kept


def _message(error: Raw) -> str:
    value = msgspec.json.decode(error)
    told = value.get("message") if isinstance(value, dict) else value
    return str(told or "The engine gave no reason.")[:2000]
