"""From a user's command to the router, and back: what was refused and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from PySide6.QtCore import QObject, Signal

from lemon_tray.door import Door
from lemon_tray.edits import Edits
from lemon_tray.names import plain
from lemon_tray.present_catalog import PlanView, Verdict, present_plan
from lemon_tray.present_policies import DecisionView, present_decision
from lemon_tray.view import Banner, BannerKind, Command, Kind, Option
from lemon_tray.words import translate
from router.errors import RouterError
from router.snapshot import DeletionView

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
CONTROLS: Final = frozenset({"llm_pool_autosize", "auto_evict", "max_loaded_models"})


class Actions(QObject):
    """Runs commands as tasks on the loop, keeps hold of them, and tells of failures."""

    edited = Signal()
    failed = Signal(object)
    planned = Signal(str, object)
    tried = Signal(object)
    pulled = Signal(str, str)
    """A model was asked for: its name, and why it is refused, "" when it has begun."""
    deletion = Signal(str, object)
    """A model, and what deleting it would take away, or why it is not deleted; None when it is."""

    def __init__(self, door: Door, loop: asyncio.AbstractEventLoop, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._door = door
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_up: set[str] = set()
        self._closed = False
        self._plan_ticket = 0
        self.edits = Edits()
        self.shows_refusals: Callable[[], bool] = lambda: False  # a window shows each in its own row

    def run(self, command: Command) -> bool:
        """Do what the router can do; False for a command that is the app's own business."""
        match command.kind:
            case Kind.SET:
                self._start(self._set(command.target, command.value))
            case Kind.LOAD:
                self._given_up.discard(command.target)
                self._start(self._load(command.target, command.value or {}))
            case Kind.UNLOAD:
                self._given_up.add(command.target)
                self._start(self._unload(command.target))
            case Kind.PLAN_DELETION:
                self._start(self._plan_deletion(command.target))
            case Kind.DELETE:
                self._start(self._delete(command.target))
            case Kind.FREE_ALL:
                self._start(self._free_all())
            case Kind.PIN:
                self._pin(command.target, bool(command.value))
            case Kind.PAUSE:
                self._door.pause(bool(command.value))
            case Kind.GET_DEMO:
                self._start(self._get_demo())
            case Kind.PULL:
                self._start(self._pull(command.target))
            case Kind.CANCEL_DOWNLOAD:
                self._start(self._cancel_download(command.target))
            case Kind.REFRESH_ENGINES | Kind.GET_ENGINE | Kind.USE_ENGINE | Kind.REMOVE_ENGINE:
                self._start(self._engine(command.kind, command.target))
            case Kind.ENABLE_POLICY:
                self._start(self._enable_policy(command.target, bool(command.value)))
            case Kind.TELL_NOTICE:
                self._start(self._tell_notice(command.target))
            case _:
                return False
        return True

    def plan(self, model: str, options: Mapping[str, Any]) -> None:
        """Ask what a load would take; `planned` carries the answer."""
        self._plan_ticket += 1
        self._start(self._plan(model, options, self._plan_ticket))

    async def _plan(self, model: str, options: Mapping[str, Any], ticket: int) -> None:
        try:
            answer = present_plan(await self._door.plan(model, options))
        except RouterError as error:
            answer = PlanView(Verdict.BAD, said(error))
        if ticket == self._plan_ticket:  # else a later question is under way
            self.planned.emit(model, answer)

    def try_policy(self, policy: str, prompt: str) -> None:
        """Ask what a policy would decide; `tried` carries the answer, or why there is none."""
        self._start(self._try(policy, prompt))

    async def _try(self, policy: str, prompt: str) -> None:
        answer: DecisionView | str
        try:
            answer = present_decision(await self._door.test_policy(policy, prompt))
        except RouterError as error:
            answer = said(error)
        self.tried.emit(answer)

    def use(self, door: Door) -> None:
        """Go on with another router, after `close`."""
        self._door = door
        self._closed = False

    async def close(self) -> None:
        """Cancel what is under way and wait for it."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)

    async def _set(self, key: str, value: Any) -> None:
        ticket = self.edits.begin(key, value)
        self.edited.emit()
        try:
            async with asyncio.timeout(ANSWER_S):
                generation = await self._door.set_settings({key: value})
        except RouterError as error:
            self._refuse(key, ticket, said(error))
        except TimeoutError:
            self._refuse(key, ticket, translate("Actions", "The router did not answer; the value stays."))
        else:
            self.edits.done(key, ticket, generation, self._door.snapshot.generation)
            self.edited.emit()

    def _refuse(self, key: str, ticket: int, reason: str) -> None:
        log.warning("%s was not changed: %s", key, reason)
        self.edits.refused(key, ticket, reason)
        self.edited.emit()
        if key not in CONTROLS and not self.shows_refusals():  # those show the reason in their own row
            title = translate("Actions", "{key} was not changed").format(key=plain(key, 30))
            self.failed.emit(fault_banner(f"set:{key}", title, reason))

    async def _load(self, model: str, options: Mapping[str, Any]) -> None:
        try:
            await self._door.load(model, options)
        except RouterError as error:
            if model in self._given_up:
                return  # the user cancelled it
            title = translate("Actions", "{model} was not loaded").format(model=plain(model, 24))
            self.failed.emit(fault_banner(f"load:{model}", title, said(error)))

    async def _unload(self, model: str) -> None:
        try:
            await self._door.unload(model, wait=False)
        except RouterError as error:
            title = translate("Actions", "{model} was not unloaded").format(model=plain(model, 24))
            self.failed.emit(fault_banner(f"unload:{model}", title, said(error)))

    async def _plan_deletion(self, model: str) -> None:
        answer: DeletionView | str
        try:
            answer = await self._door.plan_deletion(model)
        except RouterError as error:
            answer = said(error)
        self.deletion.emit(model, answer)

    async def _delete(self, model: str) -> None:
        try:
            await self._door.delete_model(model)
        except RouterError as error:
            log.warning("%s was not deleted: %s", model, error.message)
            self.deletion.emit(model, said(error))
        else:
            self.deletion.emit(model, None)

    async def _free_all(self) -> None:
        try:
            await self._door.free_all()
        except RouterError as error:
            title = translate("Actions", "Not all memory was freed")
            self.failed.emit(fault_banner("free_all", title, said(error)))

    def _pin(self, model: str, pinned: bool) -> None:
        try:
            self._door.pin(model, pinned)
        except RouterError as error:
            title = translate("Actions", "{model} was not pinned").format(model=plain(model, 24))
            self.failed.emit(fault_banner(f"pin:{model}", title, said(error)))

    async def _get_demo(self) -> None:
        try:
            end = await self._door.pull_demo()
            await end
        except RouterError as error:
            # The snapshot's download says so too, with a way to try again.
            log.warning("The demo model did not arrive: %s", error.message)
            if not self._door.snapshot.downloads:
                title = translate("Actions", "The demo model did not arrive")
                self.failed.emit(fault_banner("demo", title, said(error)))

    async def _pull(self, name: str) -> None:
        try:
            pull = await self._door.pull(name)
        except RouterError as error:
            self.pulled.emit(name, said(error))
            return
        self.pulled.emit(name, "")
        try:
            await pull.wait()
        except RouterError as error:
            if error.code == "cancelled":
                return
            title = translate("Actions", "{model} did not arrive").format(model=plain(name, 40))
            again = Option(label=translate("Actions", "Try again"), command=Command(Kind.PULL, name))
            hide = Option(
                label=translate("Actions", "Dismiss"), command=Command(Kind.DISMISS, f"fault:pull:{name}")
            )
            self.failed.emit(fault_banner(f"pull:{name}", title, said(error), again, hide))

    async def _engine(self, kind: Kind, engine: str) -> None:
        door = self._door
        titles = {
            Kind.REFRESH_ENGINES: translate("Actions", "Builds could not be looked up"),
            Kind.GET_ENGINE: translate("Actions", "The engine did not arrive"),
            Kind.USE_ENGINE: translate("Actions", "The engine was not changed"),
            Kind.REMOVE_ENGINE: translate("Actions", "The engine was not removed"),
        }
        try:
            if kind is Kind.REFRESH_ENGINES:
                await door.refresh_engines()
            elif kind is Kind.GET_ENGINE:
                await (await door.get_engine(engine or None))
            elif kind is Kind.USE_ENGINE:
                await door.use_engine(engine)
            else:
                await door.remove_engine(engine)
        except RouterError as error:
            log.warning("%s: %s", titles[kind], error.message)
            shown = any(d.state == "failed" for d in self._door.snapshot.downloads)
            if kind is not Kind.GET_ENGINE or not shown:  # a failed download is told where it was asked for
                self.failed.emit(fault_banner(f"engine:{engine}", titles[kind], said(error)))

    async def _enable_policy(self, policy: str, enabled: bool) -> None:
        try:
            await self._door.enable_policy(policy, enabled)
        except RouterError as error:
            title = translate("Actions", "{policy} was not changed").format(policy=plain(policy, 24))
            self.failed.emit(fault_banner(f"policy:{policy}", title, said(error)))

    async def _tell_notice(self, notice: str) -> None:
        try:
            await self._door.tell_notice(notice)
        except RouterError as error:
            log.warning("That a notice was seen could not be recorded: %s", error.message)

    async def _cancel_download(self, name: str) -> None:
        try:
            await self._door.cancel_download(name)
        except RouterError as error:
            title = translate("Actions", "The download goes on")
            self.failed.emit(fault_banner(f"cancel:{name}", title, said(error)))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("A command failed.", exc_info=error)


def said(error: RouterError) -> str:
    """Message and hint of an error, as one text."""
    return plain(" ".join(part for part in (error.message, error.hint) if part), 400)


def fault_banner(key: str, title: str, text: str, *options: Option) -> Banner:
    """An error that stays until the user puts it away, or takes one of the `options`."""
    hide = Option(label=translate("Actions", "Dismiss"), command=Command(Kind.DISMISS, f"fault:{key}"))
    return Banner(
        id=f"fault:{key}", kind=BannerKind.ERROR, title=title, text=text, options=(options or (hide,))
    )
