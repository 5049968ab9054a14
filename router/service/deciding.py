"""Policies at work: their helper models are leased and asked here, and what they decide is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS
from router.engines.base import Worker
from router.errors import InsufficientMemory, ModelNotFound, RouterError, Unavailable, WorkerDied
from router.memory.demand import default_ctx
from router.policy.classify import Decider, HelperModel, check_models
from router.policy.document import Policy
from router.policy.evaluate import Decision
from router.policy.fit import GaveWay
from router.policy.parse import normalized, parse_policy
from router.policy.request import RequestView
from router.policy.vectors import Vectors
from router.residency.feed import Feed
from router.residency.reconciler import Reconciler
from router.residency.table import Lease
from router.residency.world import Wants
from router.service.names import Names
from router.settings.schema import Settings
from router.snapshot import PolicyView
from router.web.relay import Relay
from router.web.upstream import NotReached, UpstreamError

AskRemote = Callable[[Model, str, bytes, float], Awaitable[tuple[int, bytes]]]

ANSWER_S: Final = 60.0
"""Seconds that a helper may take for its answer, once it is loaded and has a slot free."""
MAX_ANSWER: Final = 64 << 20
MAX_NOTED: Final = 256
GROUP_S: Final = 60.0
"""Decisions of one kind are told together, once in so many seconds."""


class Deciding:
    """Decides, and knows what a decision needs to know of models.

    Args:
        vectors_dir: where the embeddings of reference phrases are kept.
        residency: the reconciler, once there is one.
        ask_remote: asks a model of a provider, within so many seconds, for the status and body of its answer.
        on_change: called when what `shown` adds has changed.
    """

    def __init__(
        self,
        catalog: Names,
        residency: Callable[[], Reconciler],
        settings: Callable[[], Settings],
        vectors_dir: Path,
        on_change: Callable[[], None],
        ask_remote: AskRemote,
    ) -> None:
        self._catalog = catalog
        self._residency = residency
        self._settings = settings
        self._on_change = on_change
        self._ask_remote = ask_remote
        self._cramped: dict[str, tuple[str, str]] = {}
        self._relay = Relay(silence_s=ANSWER_S)
        self._decider = Decider(self, Vectors(vectors_dir))
        self._teller = Teller(lambda: residency().feed, lambda: asyncio.get_running_loop().time())

    def close(self) -> None:
        """Close what is open. Decisions under way end with an error."""
        self._relay.close()
        self._decider.close()

    async def decide(self, policy: Policy, view: RequestView) -> Decision:
        """Where a request goes."""
        cramped = self._cramped.get(policy.name)
        if cramped is not None and cramped[0] not in self._names(policy.helpers):
            self._note(policy.name, None)  # It was edited, and asks others now.
        return await self._decider.decide(policy, view)

    def _names(self, written: Iterable[str]) -> set[str]:
        return {model.name for name in written if (model := self._catalog.resolve(name)) is not None}

    async def try_out(self, document: Any, view: RequestView) -> tuple[Decision, dict[str, Any]]:
        """What a policy that need not be registered decides, and the policy as it was evaluated.

        Raises:
            PolicyFault: the document is no policy.
        """
        policy = await asyncio.to_thread(parse_policy, document, named=False)
        return await self.decide(policy, view), normalized(document)

    def check(self, policy: Policy) -> None:
        """Whether the models that its classifiers name can do what they are asked.

        Raises:
            PolicyFault: with the JSON path of the model's name.
        """
        check_models(policy, self)

    def tell(self, policy: str, decision: Decision, model: str, gave_way: tuple[GaveWay, ...]) -> None:
        """Put a decision into the feed, together with others of its kind."""
        self._teller.tell(policy, decision.matched_rule, model, gave_way)

    def window(self, name: str) -> int:
        """The context that one request to a model has, loaded as it is or as it would be; 0 if unknown."""
        model = self._catalog.resolve(name)
        if model is None:
            return 0
        for resident in self._residency().table.of_model(model.name):
            return resident.spec.ctx_size // max(1, resident.spec.parallel)
        if model.remote:
            return model.context_length
        if model.header is None:
            return 0
        asked = self._residency().table.options.get(model.name, NO_OPTIONS).over(model.options)
        settings = self._settings()
        ctx = asked.ctx_size or settings.ctx_size
        if ctx <= 0:
            return 0
        return default_ctx(model.header, ctx) // max(1, asked.parallel or settings.parallel)

    # Helpers

    def model(self, name: str) -> HelperModel | None:
        """The model of that name or alias, as policies ask it."""
        model = self._catalog.resolve(name)
        return None if model is None else HelperModel(model.type, _identity(model))

    async def ask(self, policy: str, model: str, path: str, body: Mapping[str, Any]) -> Any:
        """Lease a helper, ask it, and give the lease back before anything else is waited for.

        Raises:
            RouterError: why there is no answer.
        """
        found = self._catalog.resolve(model)
        if found is None:
            raise ModelNotFound(f"There is no model {model}.", param="model")
        data = msgspec.json.encode({**body, "model": found.asked_as})
        if found.remote:
            return _decoded(found.name, *await self._ask_remote(found, path, data, ANSWER_S))
        try:
            answer = await self._ask(policy, found.name, path, data)
        except InsufficientMemory as error:
            problem = (
                f"{policy} cannot keep {found.name}, which it asks, beside its candidates: {error.message}"
            )
            self._note(policy, (found.name, problem))
            raise
        if self._cramped.get(policy, ("", ""))[0] == found.name:
            self._note(policy, None)
        return answer

    def _note(self, policy: str, cramped: tuple[str, str] | None) -> None:
        """Note which helper of a policy has no room, or that it has some again."""
        known = self._cramped.pop(policy, None)
        if cramped is not None:
            # The figures of the first refusal stay: they move a little with each reading.
            self._cramped[policy] = known if known is not None and known[0] == cramped[0] else cramped
            if len(self._cramped) > MAX_NOTED:
                del self._cramped[next(iter(self._cramped))]
        if self._cramped.get(policy) != known:
            self._on_change()

    def shown(self, policies: Iterable[PolicyView]) -> tuple[PolicyView, ...]:
        """The policies, with the problems that they have with models that they ask."""
        return tuple(
            msgspec.structs.replace(each, problem=self._cramped[each.name][1])
            if each.name in self._cramped and each.enabled
            else each
            for each in policies
        )

    async def _ask(self, policy: str, model: str, path: str, data: bytes) -> Any:
        try:
            return await self._attempt(policy, model, path, data)
        except NotReached:
            # Its process died between the grant and the request. Nothing was sent: ask anew, once.
            try:
                return await self._attempt(policy, model, path, data)
            except NotReached as error:
                raise WorkerDied(f"The worker of {model} cannot be reached. {error}") from error

    async def _attempt(self, policy: str, model: str, path: str, data: bytes) -> Any:
        lease = await self._residency().acquire(
            model, wants=Wants.HELPER, policy=policy, body_bytes=len(data)
        )
        exchange = self._relay.exchange(lease.worker)

        def cut(why: asyncio.Future[str]) -> None:
            if not why.cancelled():
                exchange.fail(Unavailable(f"{model} was unloaded while it was asked.", code=why.result()))

        lease.cut.add_done_callback(cut)
        try:
            async with asyncio.timeout(ANSWER_S):
                await exchange.send(path, (), data)
                answer = bytearray()  # Appending to bytes would copy a large answer again and again.
                while part := await exchange.read():
                    answer += part
                    if len(answer) > MAX_ANSWER:
                        raise WorkerDied(f"The answer of {model} is too large.", code="worker_answer_broken")
            return _decoded(model, exchange.status, answer)
        except NotReached as error:
            if error.refused and not _has_died(lease.worker):
                lease.condemn()
            raise
        except UpstreamError as error:
            raise WorkerDied(f"{model} gave no whole answer. {error}") from error
        except TimeoutError as error:
            raise Unavailable(
                f"{model} took longer than {ANSWER_S:g} s to answer.", code="timeout"
            ) from error
        finally:
            self._release(lease, cut)
            exchange.close()

    @staticmethod
    def _release(lease: Lease, cut: Callable[[asyncio.Future[str]], None]) -> None:
        lease.cut.remove_done_callback(cut)
        lease.release()


class Teller:
    """Tells the feed where policies send requests: the first of a kind at once, further ones in groups."""

    def __init__(self, feed: Callable[[], Feed], now: Callable[[], float]) -> None:
        self._feed = feed
        self._now = now
        self._groups: dict[tuple[str, str, str, tuple[GaveWay, ...]], tuple[float, int]] = {}

    def tell(self, policy: str, rule: str, model: str, gave_way: tuple[GaveWay, ...]) -> None:
        """Note one decision. `rule` is "" for the default."""
        key = policy, rule, model, gave_way
        now = self._now()
        told, count = self._groups.get(key, (None, 0))
        count += 1
        if told is not None and now < told + GROUP_S:
            self._groups[key] = told, count
            return
        if len(self._groups) > 1_000:
            self._groups = {k: g for k, g in self._groups.items() if g[0] + GROUP_S > now}
        self._groups[key] = now, 0
        requests = "a request" if count == 1 else f"{count} requests"
        why = f"by the rule {rule}" if rule else "as its default"
        instead = "".join(f"; {each.candidate} gave way ({_WHY[each.reason]})" for each in gave_way)
        self._feed().add(
            "fallback" if gave_way else "route",
            f"{policy} sent {requests} to {model} {why}{instead}.",
            model=model,
            reason=rule or "default",
        )


_WHY: Final = {
    "context_too_small": "its context is too small",
    "cannot_be_loaded": "it cannot be loaded",
    "not_found": "it is not there",
    "other_type": "it does not answer such requests",
}


def _identity(model: Model) -> str:
    identity = model.identity
    return f"{identity.path}|{identity.size}|{identity.mtime_ns}|{model.type}|{model.options.llamacpp_args}"


def _has_died(worker: Worker) -> bool:
    return worker.exited.done()


def _decoded(model: str, status: int, answer: bytes | bytearray) -> Any:
    try:
        value = msgspec.json.decode(answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WorkerDied(f"The answer of {model} is no JSON.", code="worker_answer_broken") from error
    if status == 200:
        return value
    told = value.get("error", value) if isinstance(value, dict) else {}
    told = told if isinstance(told, dict) else {"message": str(told)}
    raise RouterError(
        str(told.get("message", "It gave no reason."))[:500],
        code=str(told.get("type", "worker_error")),
        status=status,
    )
