"""Requests that name a policy: where they go, and where they go instead."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from router.catalog.model import Model
from router.errors import BadRequest, ModelNotFound, RouterError, ShuttingDown
from router.policy import fit
from router.policy.classify import is_too_long
from router.policy.document import Policy
from router.policy.evaluate import Decision
from router.policy.fit import GaveWay, Size
from router.policy.switches import Switches
from router.web import requests
from router.web.api import RouterApi
from router.web.options import WebOptions
from router.web.tally import Tally
from router.web.upload import Body

#: Refusals that another candidate would meet as well.
_OF_ALL: Final = frozenset({"queue_full", "degraded"})

MAX_HEADER: Final = 256


class Route(Struct):
    """How a policy chose, and which candidates are left should the one chosen give way.

    `rerouted` tells that a worker has found the request too large once.
    """

    policy: Policy
    decision: Decision
    size: Size
    conversation: int | None
    route_to: str
    rest: list[str] = []
    gave_way: tuple[GaveWay, ...] = ()
    rerouted: bool = False
    told: bool = False

    @property
    def header(self) -> str:
        """The rule's id, or `default`; of a long id the start, since clients bound an answer's head."""
        return (self.decision.matched_rule or "default")[:MAX_HEADER]

    def trace(self) -> dict[str, Any]:
        """The decision, with its trace, as the client is told it; `route_to` is who really answers."""
        told = {**self.decision.document(trace=True), "route_to": self.route_to}
        if self.gave_way:
            told["fallback"] = [
                {"candidate": each.candidate, "reason": each.reason} for each in self.gave_way
            ]
        return told


class GivesWay(Exception):
    """The next candidate is to be asked; `route` says which."""


class Routing:
    """Chooses candidates by policy."""

    def __init__(self, api: RouterApi, tally: Tally, options: WebOptions) -> None:
        self._api = api
        self._tally = tally
        self._options = options
        self._switches = Switches()

    async def choose(self, policy: Policy, body: Body) -> Route:
        """What the policy decides about a request."""
        asked = await requests.policy_view(body, self._options, sized=policy.fallback)
        decision = await self._api.decide(policy, asked.view)
        route = Route(policy, decision, asked.size, asked.conversation, decision.route_to)
        self._tally.routed(policy.name, route.header, decision.route_to)
        return route

    def first(self, route: Route, model_type: str) -> Model:
        """The first candidate to ask, of a model that answers such a call.

        Raises:
            BadRequest: no candidate's context can hold the request.
            ModelNotFound: naming the policy.
        """
        if route.policy.fallback:
            self._pass_over(route, model_type)
        return self.candidate(route)

    def candidate(self, route: Route) -> Model:
        """The model that the route leads to now.

        Raises:
            ModelNotFound: naming the policy.
        """
        name = route.route_to
        try:
            target = self._api.resolve(name)
        except ModelNotFound as exc:
            raise ModelNotFound(
                f"The policy {route.policy.name} routes to {name}, which is not there. {exc.message}",
                param="model",
            ) from exc
        if isinstance(target, Policy):
            raise ModelNotFound(
                f"The policy {route.policy.name} routes to {name}, which is a policy, not a model."
            )
        return target

    def granted(self, route: Route, model: str) -> None:
        """A candidate is there and is being asked."""
        if route.told:
            return
        route.told = True
        if self._switches.note(route.policy.name, route.conversation, model):
            self._tally.switched(route.policy.name)
        self._api.routed(route.policy.name, route.decision, model, route.gave_way)

    def cannot_load(self, route: Route, error: RouterError) -> None:
        """The candidate cannot be had.

        Raises:
            GivesWay: there is another one.
        """
        if isinstance(error, ShuttingDown) or error.code in _OF_ALL or not route.rest:
            return
        self._next(route, fit.CANNOT_LOAD, route.rest)

    def refused(self, route: Route, error: RouterError) -> None:
        """The candidate's worker refuses the request, and no byte of an answer was sent.

        Raises:
            GivesWay: it is too large for that one, and another one may hold it.
            BadRequest: it is too large for all of them.
        """
        if not route.policy.fallback or not is_too_long(error):
            return
        window = self._api.window(route.route_to)
        larger = [n for n in route.rest if not (0 < self._api.window(n) <= window)]
        if route.rerouted or not larger:
            raise self._too_small(route) from error
        route.rerouted = True
        self._next(route, fit.CONTEXT, larger)

    def _next(self, route: Route, reason: str, names: list[str]) -> None:
        route.gave_way = (*route.gave_way, GaveWay(route.route_to, reason))
        self._tally.gave_way(route.policy.name, route.route_to, reason)
        route.route_to, route.rest, route.told = names[0], names[1:], False
        raise GivesWay

    def _pass_over(self, route: Route, model_type: str) -> None:
        """Take the first candidate that is there and whose context can hold the request."""
        names = fit.in_order(route.policy, route.decision.route_to)
        models = {name: self._model(name) for name in names}
        chosen = models[names[0]]
        stays_local = not route.policy.fallback_remote and (chosen is None or not chosen.remote)
        there = [
            name
            for name, model in models.items()
            if model is not None and model.type == model_type and not (stays_local and model.remote)
        ]
        if not there:
            return
        kept, passed = fit.fitting(there, route.size, self._api.window)
        if not kept:
            raise self._too_small(route, there)
        unfit: tuple[GaveWay, ...] = ()
        if names[0] not in there:
            unfit = (GaveWay(names[0], fit.MISSING if chosen is None else fit.OTHER_TYPE),)
        route.gave_way = (*unfit, *passed)
        for each in route.gave_way:
            self._tally.gave_way(route.policy.name, each.candidate, each.reason)
        route.route_to, route.rest = kept[0], kept[1:]

    def _model(self, name: str) -> Model | None:
        try:
            found = self._api.resolve(name)
        except ModelNotFound:
            return None
        return None if isinstance(found, Policy) else found

    def _too_small(self, route: Route, names: list[str] | None = None) -> BadRequest:
        known = names or list(dict.fromkeys(route.policy.candidates))
        limits = ", ".join(f"{name} {self._api.window(name)}" for name in known if self._api.window(name))
        return BadRequest(
            f"The request has about {route.size.prompt} tokens, more than any candidate of "
            f"{route.policy.name} can take. Their contexts: {limits}.",
            code=fit.CONTEXT,
            param="messages",
            hint="Shorten it, or give a candidate a larger ctx_size.",
        )
