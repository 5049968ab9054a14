"""Evaluates policies whose conditions ask models. How a model is asked is given from outside."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from router.catalog.kinds import A_MODEL, EMBEDDING, LLM, RERANKING
from router.errors import RouterError
from router.policy.document import LLM_CHOICE, SEMANTIC_SIMILARITY, Classifier, Policy, Score, conditions
from router.policy.evaluate import (
    SEARCH_S,
    Answer,
    AskScores,
    Decision,
    Evaluation,
    Failure,
    Question,
    Scores,
    evaluation,
    found,
)
from router.policy.parse import ROUTER_ID
from router.policy.request import RequestView
from router.policy.schema import PolicyFault
from router.policy.vectors import Vector, Vectors, cosine, unit

log = logging.getLogger("router.policy")

LARGE_TEXT: Final = 64 << 10
LARGE_WORK: Final = 2_000_000
"""Characters, and characters times what is looked for, from which on a text is looked at off the loop."""
SEARCHES_S: Final = 1.0
"""Seconds that all slow searches of one decision may take together."""
SHOWN_TEXT: Final = 6_000
"""Characters of a text that a language model is shown; of a longer one the middle is left out."""
EMBEDDED_TEXT: Final = 8_000
ANSWER_TOKENS: Final = 128
MAX_RATIONALE: Final = 300
_BATCH: Final = 32

_FENCED: Final = re.compile(r"```[A-Za-z]*[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)


class HelperModel(Struct, frozen=True):
    """A model that a policy asks. Its `identity` changes with its file and with what it would answer."""

    type: str
    identity: str


class Helpers(Protocol):
    """The models, as policies reach them."""

    def model(self, name: str) -> HelperModel | None:
        """The model of that name or alias; None if there is none."""

    async def ask(self, policy: str, model: str, path: str, body: Mapping[str, Any]) -> Any:
        """Wait for a model, ask it, let it go again. Returns the answer, decoded.

        Raises:
            RouterError: why there is no answer.
        """


class Decider:
    """Decides for policies, models asked as needed. Close it at the end."""

    def __init__(self, helpers: Helpers, vectors: Vectors) -> None:
        self._helpers = helpers
        self._vectors = vectors
        self._searches = ThreadPoolExecutor(2, thread_name_prefix="policy-regex")
        self._told: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        """Start no search any more; one under way ends by itself within its time."""
        self._searches.shutdown(wait=False, cancel_futures=True)

    async def decide(self, policy: Policy, view: RequestView) -> Decision:
        """Where the request goes. A classifier that fails decides its condition by `on_error`."""
        running = evaluation(policy, view)
        searches = _Searches(self._searches, view.text)
        answer: Answer = None
        large = len(view.text) > LARGE_TEXT or len(view.text) * policy.breadth > LARGE_WORK
        while True:
            if large:
                step = await asyncio.to_thread(_step, running, answer)
            else:
                step = _step(running, answer)
            if isinstance(step, Decision):
                return step
            if isinstance(step, AskScores):
                answer = await self._scores(policy, step.classifier, view)
            else:
                answer = await searches.find(step.source)

    async def _scores(self, policy: Policy, classifier: Classifier, view: RequestView) -> Scores | Failure:
        try:
            scores = await self._asked(policy, classifier, view)
        except RouterError as error:
            return self._failed(policy, classifier, f"{error.status} {error.code}: {error.message}")
        except (ValueError, msgspec.MsgspecError) as error:
            return self._failed(policy, classifier, f"{classifier.model} gave no usable answer: {error}")
        self._told.pop((policy.name, classifier.id), None)
        return scores

    def _failed(self, policy: Policy, classifier: Classifier, why: str) -> Failure:
        key = policy.name, classifier.id
        # Once for each reason: a client that asks every second is no news.
        level = logging.DEBUG if self._told.get(key) == why else logging.WARNING
        self._told[key] = why
        log.log(
            level,
            "The classifier %s of the policy %s could not be asked (%s); it counts as %s.",
            classifier.id,
            policy.name,
            why,
            "matched" if classifier.on_error else "not matched",
        )
        return Failure(why)

    async def _asked(self, policy: Policy, classifier: Classifier, view: RequestView) -> Scores:
        model = self._helpers.model(classifier.model)
        if model is None:
            raise ValueError(f"there is no model {classifier.model}")
        fault = _misfit(classifier, model.type)
        if fault:
            raise ValueError(fault)
        if classifier.type == SEMANTIC_SIMILARITY:
            return await self._similarity(policy, classifier, model, view)
        if classifier.type == LLM_CHOICE:
            return await self._choice(policy, classifier, view)
        labels = classifier.labels or _named_labels(policy, classifier)
        if model.type == RERANKING:
            return await self._ranked(policy, classifier, labels, view)
        return await self._rated(policy, classifier, labels, view)

    # Embeddings

    async def _similarity(
        self, policy: Policy, classifier: Classifier, model: HelperModel, view: RequestView
    ) -> Scores:
        if not view.text.strip():
            return Scores(dict.fromkeys(classifier.labels, 0.0))

        async def embed(texts: list[str]) -> list[list[float]]:
            made: list[list[float]] = []
            for start in range(0, len(texts), _BATCH):
                made += await self._embed(policy, classifier, texts[start : start + _BATCH])
            return made

        phrases = [phrase for _, each in classifier.phrases for phrase in each]
        vectors = await self._vectors.of(model.identity, phrases, embed)
        text = (await self._embed_start(policy, classifier, view.text))[0]
        return await asyncio.to_thread(_similarities, text, classifier, vectors)

    async def _embed_start(self, policy: Policy, classifier: Classifier, text: str) -> list[list[float]]:
        """The text's embedding; of one that is too long for the model, that of its beginning."""
        text = text[:EMBEDDED_TEXT]
        while True:
            try:
                return await self._embed(policy, classifier, [text])
            except RouterError as error:
                if not is_too_long(error) or len(text) < 64:
                    raise
                text = text[: len(text) // 2]

    async def _embed(self, policy: Policy, classifier: Classifier, texts: list[str]) -> list[list[float]]:
        body = {"model": classifier.model, "input": texts}
        answer = await self._helpers.ask(policy.name, classifier.model, "/v1/embeddings", body)
        data = sorted(msgspec.convert(answer, _Embeddings).data, key=lambda each: each.index)
        if len(data) != len(texts):
            raise ValueError(f"{len(data)} embeddings for {len(texts)} texts")
        return [each.embedding for each in data]

    # Rerankers

    async def _ranked(
        self, policy: Policy, classifier: Classifier, labels: tuple[str, ...], view: RequestView
    ) -> Scores:
        body = {"model": classifier.model, "query": shortened(view.text), "documents": list(labels)}
        answer = await self._helpers.ask(policy.name, classifier.model, "/v1/rerank", body)
        results = msgspec.convert(answer, _Ranking).results
        # A reranker's scores are log-odds.
        return Scores(
            {labels[r.index]: _sigmoid(r.relevance_score) for r in results if r.index < len(labels)}
        )

    # Language models

    async def _choice(self, policy: Policy, classifier: Classifier, view: RequestView) -> Scores:
        labels = classifier.labels
        schema = {
            "type": "object",
            "properties": {"label": {"type": "string", "enum": list(labels)}},
            "required": ["label"],
            "additionalProperties": False,
        }
        form = 'Reply with JSON of this form and nothing else: {"label": "..."}. The label is one of these: '
        reply = await self._chat(policy, classifier, form + _quoted(labels), schema, view)
        label, rationale = chosen_label(reply, labels)
        scores = dict.fromkeys(labels, 0.0)
        if label is not None:
            scores[label] = 1.0
        return Scores(scores, rationale)

    async def _rated(
        self, policy: Policy, classifier: Classifier, labels: tuple[str, ...], view: RequestView
    ) -> Scores:
        schema = {
            "type": "object",
            "properties": {label: {"type": "number", "minimum": 0, "maximum": 1} for label in labels},
            "required": list(labels),
            "additionalProperties": False,
        }
        form = (
            "Say how well each label fits the request, as a number from 0 (not at all) to 1 (surely). Reply "
            "with one JSON object, label to number, and nothing else. The labels are: "
        )
        reply = await self._chat(policy, classifier, form + _quoted(labels), schema, view)
        return Scores(rated_labels(reply, labels))

    async def _chat(
        self, policy: Policy, classifier: Classifier, form: str, schema: Mapping[str, Any], view: RequestView
    ) -> str:
        told = [f"It brings {what}." for what, is_so in _brought(view) if is_so]
        instructions = "\n\n".join(part for part in (classifier.prompt, *told, form) if part)
        body = {
            "model": classifier.model,
            "messages": [
                {"role": "system", "content": instructions},
                {"role": "user", "content": f"The request:\n\n{shortened(view.text)}"},
            ],
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
            "stream": False,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "label", "strict": True, "schema": schema},
            },
            "chat_template_kwargs": {"enable_thinking": False},
        }
        answer = await self._helpers.ask(policy.name, classifier.model, "/v1/chat/completions", body)
        choices = msgspec.convert(answer, _Chat).choices
        if not choices:
            raise ValueError("it has no choices")
        return choices[0].message.content or ""


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class _Chat(Struct):
    choices: list[_Choice]


class _Embedding(Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(Struct):
    data: list[_Embedding]


class _Ranked(Struct):
    index: int
    relevance_score: float


class _Ranking(Struct):
    results: list[_Ranked]


class _Searches:
    """The slow searches of one decision: in threads, and bounded together."""

    def __init__(self, pool: ThreadPoolExecutor, text: str) -> None:
        self._pool = pool
        self._text = text
        self._left_s = SEARCHES_S

    async def find(self, source: str) -> bool | None:
        if self._left_s <= 0:
            return None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                return await loop.run_in_executor(self._pool, self._search, source, self._left_s)
        except TimeoutError:
            return None
        finally:
            self._left_s -= loop.time() - began

    def _search(self, source: str, left_s: float) -> bool | None:
        return found(source, self._text, min(SEARCH_S, left_s), release=True)


def _step(running: Evaluation, answer: Answer) -> Question | Decision:
    try:
        return running.send(answer)
    except StopIteration as end:
        decision: Decision = end.value
        return decision


def check_models(policy: Policy, helpers: Helpers) -> None:
    """Whether the models that its classifiers name can do what they are asked.

    Raises:
        PolicyFault: with the JSON path of the model's name.
    """
    for place, classifier in enumerate(policy.classifiers):
        model = helpers.model(classifier.model)
        fault = _misfit(classifier, model.type) if model is not None else ""
        if fault:
            of_router = classifier.id == ROUTER_ID
            path = "$.routing.router.model" if of_router else f"$.routing.classifiers[{place}].model"
            raise PolicyFault(f"{path}: {fault}", param=path)


def _misfit(classifier: Classifier, kind: str) -> str:
    fitting = {SEMANTIC_SIMILARITY: (EMBEDDING,), LLM_CHOICE: (LLM,)}.get(classifier.type, (LLM, RERANKING))
    if kind in fitting:
        return ""
    needs = " or ".join(A_MODEL[each] for each in fitting)
    return f"{classifier.model} is {A_MODEL.get(kind, kind)}; {classifier.type} needs {needs}"


def _named_labels(policy: Policy, classifier: Classifier) -> tuple[str, ...]:
    """The labels that the policy's conditions name, where the classifier declares none."""
    leaves = (leaf for rule in policy.rules for leaf in conditions(rule.match))
    return tuple(
        dict.fromkeys(s.label for s in leaves if isinstance(s, Score) and s.classifier == classifier.id)
    )


def _similarities(text: list[float], classifier: Classifier, vectors: Mapping[str, Vector]) -> Scores:
    of_text = unit(text)
    return Scores(
        {
            label: max(cosine(of_text, vectors[phrase]) for phrase in phrases)
            for label, phrases in classifier.phrases
        }
    )


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _brought(view: RequestView) -> tuple[tuple[str, bool], ...]:
    return ("tools", view.has_tools), ("images", view.has_images)


def _quoted(labels: tuple[str, ...]) -> str:
    return ", ".join(json.dumps(label, ensure_ascii=False) for label in labels)


def shortened(text: str) -> str:
    """The text, or the beginning and the end of a long one."""
    if len(text) <= SHOWN_TEXT:
        return text
    head = SHOWN_TEXT * 2 // 3
    return f"{text[:head]}\n[...]\n{text[head - SHOWN_TEXT :]}"


def is_too_long(error: RouterError) -> bool:
    """Whether a worker says that a text has more tokens than it can take."""
    words = error.message.lower()
    return (
        error.code == "exceed_context_size_error"
        or "too large to process" in words
        or "maximum context length" in words
        or "prompt is too long" in words
        or ("context" in words and "exceed" in words)
    )


def chosen_label(reply: str, labels: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The label that a reply names, and why; none in any reply but JSON, bare or in one code fence, that
    names one of the labels."""
    value = _json_in(reply)
    label = value.get("label") if isinstance(value, dict) else value
    reason = value.get("rationale") if isinstance(value, dict) else None
    rationale = reason[:MAX_RATIONALE] if isinstance(reason, str) and reason else None
    return (label if isinstance(label, str) and label in labels else None), rationale


def rated_labels(reply: str, labels: tuple[str, ...]) -> dict[str, float]:
    """The scores in a reply: JSON, bare or in one code fence.

    Raises:
        ValueError: it is none, or a score is no number from 0 to 1.
    """
    value = _json_in(reply)
    if not isinstance(value, dict):
        raise ValueError("no JSON object with a score for each label")
    scores: dict[str, float] = {}
    for label in labels:
        score = value.get(label)
        if score is None:
            continue
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise ValueError(f"the score of {label} is no number from 0 to 1")
        scores[label] = float(score)
    return scores


def _json_in(reply: str) -> Any:
    text = reply.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        return msgspec.json.decode(fenced[1] if fenced else text)
    except (msgspec.MsgspecError, RecursionError):
        return None
