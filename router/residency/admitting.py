"""Loads: whether one may begin, where it goes, who must go for it, and what it waits for."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from router.catalog.model import Model
from router.catalog.options import CTX_AUTO, NO_OPTIONS, LoadOptions
from router.errors import RouterError
from router.residency import refusals
from router.residency.admission import Ask, Choice, Outcome, choose, fewest
from router.residency.board import (
    EVICTING,
    LOADING,
    READY,
    Board,
    Planned,
    Slot,
    agrees,
    listed,
    loading_row,
    waits_for,
)
from router.residency.placement import Placement
from router.residency.world import RECOVERY_S, Intent, Load, Wait, WaiterRow, Wants, Why

FORGIVEN_AFTER_S = 300.0
"""Seconds after its back-off ends until a model that failed may again have another one unload for it."""


class Preview(Struct, frozen=True):
    """What loading a model would take now, and what would have to happen first. Nothing is done.

    Attributes:
        placement: where it would go; None if it cannot be laid out.
        verdict: `fits`, `evicts`, `waits`, `refused` or `loaded`.
        victims: names of models that would have to go.
        devices: the table of `refusals.device_table`.
        reason: why it is refused or waits, or what it would do, in a sentence.
    """

    placement: Placement | None
    verdict: str
    victims: tuple[str, ...]
    devices: tuple[Mapping[str, Any], ...]
    reason: str


class Admitting(Board):
    """A board on which loads are decided."""

    def _admit(self, waiter: WaiterRow) -> None:
        """Start the load of a model that has no process, or say what it waits for."""
        model = self.desired.models[waiter.model]
        group = self._group(waiter.model)
        # A helper needs no slot in the pool; a request for the same model takes one in its own turn.
        standard = waiter.wants is not Wants.HELPER
        if self._refuse_if_paused(model.name):
            return
        if standard and self._refuse_if_pinned(model.name, model.type):
            return
        in_flight = sum(r.state is LOADING for r in self.residents)
        is_full = in_flight >= self.settings.max_parallel_loads
        if is_full and model.name not in self.world.intents:
            if not self._refuse_to_wait(model.name, "other models load"):
                self._claim(model.name, model.type if standard else None, "waits while other models load")
            return
        loads = (w.options for w in group if w.wants is Wants.LOAD)
        # A load that was asked for by its options goes before, and if it is impossible, it alone is.
        for asked in dict.fromkeys((*loads, waiter.options)):
            if self._admit_as(waiter, asked, standard, is_full):
                return
            if waiter.id not in self.waiting or self._refuse_if_paused(model.name):
                return

    def _refuse_if_paused(self, model: str) -> bool:
        """While paused, models are loaded only for those who ask for the load itself."""
        if not self.world.paused or any(w.wants is Wants.LOAD for w in self._group(model)):
            return False
        self._refuse_all(model, refusals.paused(model))
        return True

    def _admit_as(self, waiter: WaiterRow, asked: LoadOptions, standard: bool, is_full: bool) -> bool:
        """Start the load with these options, or say what it waits for. False if those who ask for them have
        been refused: it may be possible with others."""
        model = self.desired.models[waiter.model]
        options = self._complete(model, asked)
        if not self.memory.is_fresh:
            self._await_sample()
            self._prepare(model, options, waiter, standard)
            self._claim(model.name, model.type if standard else None, "waits for a reading of the devices")
            return True
        try:
            choice = self._choose(model, asked, options, waiter)
        except RouterError as error:
            self._refuse_all(model.name, error, asked)
            return False
        if choice is None:
            return False
        failure = self.world.failures.get(model.name)
        if failure is not None and self.now >= failure.until + FORGIVEN_AFTER_S:
            failure = None
        victims = list(choice.victims)
        slot = self._slot(model.type, victims) if standard else Slot.OPEN
        surplus = None
        if slot is Slot.FULL:
            surplus = self._victim(model.type, besides=victims)
            if surplus is not None and victims and choice.placement is not None:
                victims = list(fewest(choice.placement, self.memory, victims, going=[surplus]))
        # For a model that has failed lately nobody else has to go: one bad file must not cost others their
        # place again and again. Asking for the load explicitly forgets the failure.
        if failure is not None and (victims or surplus):
            self._refuse_all(model.name, refusals.not_worth_a_victim(model.name, failure), asked)
            return False
        placement = choice.placement
        busy = next((v for v in (*victims, surplus) if v is not None and v.leases), None)
        if (busy or choice.outcome is Outcome.LOADING) and self._refuse_to_wait(
            model.name, f"{busy.row.model} is answering" if busy else "other models load", asked
        ):
            return False
        if slot is Slot.FULL and surplus is None:
            # Nobody can give up a slot yet, so nobody gives up memory for nothing.
            victims = []
        for victim in victims:
            if victim.drain is None:
                self._let_go(victim, Why.MAKE_ROOM, room_for=model.name)
        if surplus is not None:
            self._end_standard(surplus, Why.MAKE_ROOM, room_for=model.name)
        if standard and slot is not Slot.OPEN:
            slot = self._slot(model.type, ())
        if slot is Slot.OPEN and choice.outcome is Outcome.FITS and placement is not None and not is_full:
            self._start(model, asked, options, standard, placement)
            return True
        if slot is Slot.OPEN and choice.outcome is Outcome.FITS and placement is not None:
            if self._refuse_to_wait(model.name, "other models load", asked):
                return False
            self._claim(model.name, model.type if standard else None, "waits while other models load")
        else:
            self._keep_place(model.name, model.type if standard else None, choice.outcome, victims, surplus)
        if placement is not None:
            self.intents[model.name] = Intent(options, placement)
            self.memory.take(placement, claim=True)
        return True

    def _start(
        self, model: Model, asked: LoadOptions, options: LoadOptions, standard: bool, placement: Placement
    ) -> None:
        lacks = {}
        if self.settings.admission == "proceed":
            lacks = self.memory.shortages(placement, self.memory.now)
        self.memory.take(placement, claim=False)
        self.actions.append(Load(model.name, asked, options, standard, placement, lacks))
        self._add(loading_row(model.name, model.type, options, standard, self.now))
        self.blocked[model.name] = Wait(f"{model.name} is loading")

    def _complete(self, model: Model, asked: LoadOptions) -> LoadOptions:
        """What was asked for, completed by what was asked for before, and by the model's own options."""
        before = self.world.options.get(model.name, NO_OPTIONS)
        return asked.over(before).over(self.world.placer.canonical(model.options))

    def preview(self, waiter: WaiterRow) -> Preview:
        """What the waiter would cause, alone."""
        model = self.desired.models[waiter.model]
        options = self._complete(model, waiter.options)
        resident = self._resident_of(model.name)
        memory = self.memory
        if resident is not None and agrees(waiter, resident):
            placement = Placement(resident.holds)
            devices = refusals.device_table(placement, memory, self.world, self.settings)
            return Preview(placement, "loaded", (), tuple(devices), f"{model.name} is loaded.")
        pins = self._filling_pins(model.type)
        if resident is None and pins:
            return Preview(None, "refused", (), (), refusals.slots_pinned(model.name, pins).message)
        idle, busy, later = self._who_may_go(waiter)
        if resident is not None:
            # It would be reloaded: its own bytes come back first.
            idle = [resident, *(r for r in idle if r is not resident)]
        choice = choose(self._asker(model, options), memory, idle, busy, later)
        devices = refusals.device_table(choice.placement, memory, self.world, self.settings)
        victims = [r for r in choice.victims if r is not resident]
        if resident is None and (surplus := self._surplus(model.type, victims)):
            victims.append(surplus)
        names = tuple(r.row.model for r in victims)
        if choice.outcome is Outcome.NEVER:
            error = refusals.insufficient(model.name, choice.placement, memory, self.world, self.settings)
            return Preview(choice.placement, "refused", (), tuple(devices), error.message)
        if names:
            reason = f"{listed(names)} would be unloaded first."
            return Preview(choice.placement, "evicts", names, tuple(devices), reason)
        if choice.outcome is Outcome.FITS:
            return Preview(choice.placement, "fits", (), tuple(devices), f"{model.name} fits.")
        reason = f"{model.name} {waits_for(choice.outcome, (), None)[0]}."
        return Preview(choice.placement, "waits", (), tuple(devices), reason)

    # Memory

    def _choose(
        self, model: Model, asked: LoadOptions, options: LoadOptions, waiter: WaiterRow
    ) -> Choice | None:
        """Where the model goes and who must go for it. None if those who ask for it so have been refused.

        Raises:
            RouterError: it cannot be laid out at all.
        """
        kept = self._kept(model, options)
        ask = self._asker(model, options)
        if self.settings.admission == "proceed":
            best = next(iter(ask(self.memory.now)), None)
            return Choice(Outcome.FITS, best) if best else Choice(Outcome.NEVER, None)
        idle, busy, later = self._who_may_go(waiter)
        memory = self.memory
        choice = choose(ask, memory, idle, busy, later, kept)
        if model.name in self.world.short and choice.placement and choice.outcome is not Outcome.NEVER:
            choice = self._empty_for(choice.placement, idle) or choice
        if choice.outcome is Outcome.COMING:
            self._await_sample()
            self.deadlines += [f.at + RECOVERY_S for f in self.world.freed if f.at + RECOVERY_S > self.now]
            self.deadlines += [r.row.settles_at for r in self.residents if r.row.settles_at > self.now]
        if choice.outcome is not Outcome.NEVER:
            return choice
        pinned = [r for r in self.residents if r.pinned and not r.row.stuck]
        blocked_by = choose(ask, memory, idle, busy, [*later, *pinned]) if pinned else choice
        names = sorted({r.row.model for r in pinned}) if blocked_by.outcome is Outcome.LOADING else []
        placement = (blocked_by if names else choice).placement
        spared = self._spared(waiter)
        error = refusals.insufficient(model.name, placement, memory, self.world, self.settings, names, spared)
        for member in self._group(model.name):
            # A helper spares models that others need not: what it is refused may be possible for them.
            is_as_free = waiter.wants is not Wants.HELPER or member.wants is Wants.HELPER
            if is_as_free and member.options == asked:
                self._refuse(member, error)
        return None

    def _kept(self, model: Model, options: LoadOptions) -> Placement | None:
        """The layout for which the model waited already."""
        intent = self.world.intents.get(model.name)
        return intent.placement if intent is not None and intent.options == options else None

    def _asker(self, model: Model, options: LoadOptions) -> Ask:
        """Asks for the model's layouts. An automatic context leaves room for its policies' candidates."""
        ask = functools.partial(self.world.placer.placements, model, options, self.settings)
        if options.ctx_size != CTX_AUTO:
            return ask
        others = {
            name
            for p in self.desired.policies
            if p.enabled and model.name in p.candidates
            for name in p.candidates
            if name != model.name and name in self.desired.models and name not in self.by_name
        }

        def ask_beside(room: Mapping[str, int]) -> Iterable[Placement]:
            left = dict(room)
            for name in sorted(others):
                other = self.desired.models[name]
                wanted = self._complete(other, NO_OPTIONS)
                if wanted.ctx_size == CTX_AUTO or other.header is None:
                    continue
                try:
                    first = next(iter(self.world.placer.placements(other, wanted, self.settings, left)), None)
                except RouterError:
                    # It cannot be loaded as its options are, so nothing has to be left for it.
                    continue
                for device, size in (first.booking if first else {}).items():
                    if device in left:
                        left[device] -= size
            return ask(left)

        return ask_beside

    def _prepare(self, model: Model, options: LoadOptions, waiter: WaiterRow, standard: bool) -> None:
        """Until a newer reading decides: what is likely to be decided holds for those who come later.

        Nobody goes yet, but those who are likely to go take no new request, and memory is kept.
        """
        idle, busy, later = self._who_may_go(waiter)
        try:
            choice = choose(
                self._asker(model, options), self.memory, idle, busy, later, self._kept(model, options)
            )
        except RouterError:
            # Told when the decision is made.
            return
        if choice.outcome is Outcome.NEVER or choice.placement is None:
            return
        likely = list(choice.victims)
        if standard and (surplus := self._surplus(model.type, likely)):
            likely.append(surplus)
        for resident in likely:
            if resident.leases and resident.drain is None:
                self._let_go(resident, Why.MAKE_ROOM, room_for=model.name)
            resident.spoken_for = True
        self.intents[model.name] = Intent(options, choice.placement)
        self.memory.take(choice.placement, claim=True)

    def _empty_for(self, placement: Placement, idle: Sequence[Planned]) -> Choice | None:
        """For a model whose worker ran out of memory: everybody idle on its devices goes first. None when
        they have gone."""
        there = [r for r in idle if any(r.holds.get(device, 0) for device in placement.booking)]
        if there:
            return Choice(Outcome.VICTIMS, placement, tuple(there))
        leaving = (r for r in self.residents if r.state is EVICTING and not r.row.stuck)
        if any(r.holds.get(device, 0) for r in leaving for device in placement.booking):
            return Choice(Outcome.COMING, placement)
        return None

    def _who_may_go(self, waiter: WaiterRow) -> tuple[list[Planned], list[Planned], list[Planned]]:
        """Who holds memory and may go for a load, in order: idle ones, busy ones; and who may later."""
        spared = self._spared(waiter)
        idle, busy, later = [], [], []
        for resident in self.residents:
            if resident.state is EVICTING or resident.pinned or resident.row.model in spared:
                continue
            if self._is_unwanted_load(resident):
                idle.append(resident)
            elif resident.state is LOADING or resident.wanted_ahead:
                later.append(resident)
            elif resident.leases or resident.drain is not None:
                busy.append(resident)
            else:
                idle.append(resident)
        idle.sort(key=lambda r: (r.state is READY, not self._is_unwanted(r), r.row.use_order))
        busy.sort(key=lambda r: (r.drain is None and not r.row.was_draining, r.row.use_order))
        return idle, busy, later

    def _spared(self, waiter: WaiterRow) -> Collection[str]:
        """Models that do not go for this waiter: for a routing decision the policy's own candidates."""
        if waiter.wants is not Wants.HELPER:
            return ()
        return {name for p in self.desired.policies if p.name == waiter.policy for name in p.candidates}

    def _await_sample(self) -> None:
        self.wants_sample = True

    def _refuse_to_wait(self, model: str, why: str, asked: LoadOptions | None = None) -> bool:
        """With `admission=reject` nobody waits for others to end."""
        if self.settings.admission != "reject":
            return False
        self._refuse_all(model, refusals.rejected(model, why), asked)
        return True

    # Reloads

    def _can_reload(self, waiter: WaiterRow, resident: Planned) -> bool:
        """Whether the model fits with other options, its bytes given back. If not, the waiter is refused and
        the model stays as it is; while that cannot be told, it stays and the waiter waits."""
        if self.settings.admission == "proceed":
            return True
        if not self.memory.is_fresh:
            self._await_sample()
            return False
        model = self.desired.models[waiter.model]
        options = self._complete(model, waiter.options)
        ask = self._asker(model, options)
        idle, busy, later = self._who_may_go(waiter)
        others = [r for r in (*idle, *busy, *later) if r is not resident]
        try:
            choice = choose(ask, self.memory, [resident], others, ())
        except RouterError as impossible:
            self._refuse(waiter, impossible)
            return False
        if choice.outcome is not Outcome.NEVER:
            return True
        error = refusals.insufficient(
            model.name, choice.placement, self.memory, self.world, self.settings, given_back=resident.holds
        )
        self._refuse(waiter, error)
        return False
