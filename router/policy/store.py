"""The registered policies and their folder, one JSON file a policy."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from router.errors import ModelNotFound, RouterError, near_matches
from router.policy.document import Policy
from router.policy.parse import MAX_SIZE, PolicyFault, decode, parse_policy
from router.settings.files import write_atomically, write_object
from router.settings.watching import INTERVAL_S, SETTLE_S, Settling, Waker

log = logging.getLogger(__name__)


def unresolved(policy: Policy, resolve: Callable[[str], object | None]) -> tuple[str, ...]:
    """The components, as written, that no model answers to."""
    names = dict.fromkeys((*policy.components, *policy.candidates, *policy.helpers))
    return tuple(name for name in names if resolve(name) is None)


class _Entry(msgspec.Struct, frozen=True):
    """A policy with its file, the document as written, and a digest of the file's contents."""

    policy: Policy
    document: dict[str, Any]
    file: Path
    digest: bytes


class PolicyStore:
    """The policies in force. Read them at any time; changes are written first and then put in force.

    Attributes:
        on_change: called after each change of `policies`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        on_change: Callable[[], None] | None = None,
        interval_s: float = INTERVAL_S,
        settling: Settling | None = None,
    ) -> None:
        self.folder = folder
        self.on_change = on_change
        self._entries: dict[str, _Entry] = {}
        self._policies: Mapping[str, Policy] = MappingProxyType({})
        self._faults: dict[Path, str] = {}
        self._settling = settling or Settling(SETTLE_S)
        self._order = asyncio.Lock()
        self._waker = Waker(interval_s)

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Name to policy, enabled or not, by name. A change makes a new mapping."""
        return self._policies

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with files of the folder, one sentence each, naming file and JSON path."""
        return tuple(f"{path}: {fault}" for path, fault in sorted(self._faults.items()))

    def load(self) -> Mapping[str, Policy]:
        """Read every file of the folder. A bad one harms no other. Blocks: call it off the loop."""
        self._put(*_read_folder(self.folder))
        return self._policies

    async def rescan(self) -> bool:
        """Take over files that others edited; True if that changed a policy.

        A file that became bad keeps the policy it held. One that is gone takes its policy with it once it has
        been gone for a while.
        """
        async with self._order:
            known = {entry.file: entry for entry in self._entries.values()}
            entries, faults = await asyncio.to_thread(_read_folder, self.folder, known)
            if self.folder in faults:
                return self._put(self._entries, faults)
            missing = [name for name in self._entries if name not in entries]
            due = self._settling.due([n for n in missing if self._entries[n].file not in faults])
            kept = {name: self._entries[name] for name in missing if name not in due}
            # A file whose policy was renamed needs no settling: what it held is replaced, not lost.
            renamed = {entry.file for entry in entries.values()}
            kept = {name: entry for name, entry in kept.items() if entry.file not in renamed}
            return self._put({**entries, **kept}, faults)

    async def watch(self) -> None:
        """Rescan every few seconds, until cancelled."""
        await self._waker.run(self.rescan, str(self.folder))

    def wake(self) -> None:
        """Make a running watch look now."""
        self._waker.wake()

    async def register(self, document: Any) -> Policy:
        """Register or replace a policy, on disk and then in force.

        Whether its components exist is for the caller to ask (`unresolved`). A document that does not say
        whether it is enabled leaves the switch of the policy that it replaces as it is.

        Raises:
            PolicyFault: with the JSON path; what was registered before stays.
            RouterError: it could not be written; what was registered before stays.
        """
        value = decode(document) if isinstance(document, (bytes, bytearray)) else document
        policy = await asyncio.to_thread(parse_policy, value)
        async with self._order:
            known = self._entries.get(policy.name)
            if known is not None and not known.policy.enabled and "enabled" not in value:
                value = {**value, "enabled": False}
                policy = msgspec.structs.replace(policy, enabled=False)
            await self._write(policy, value)
        return policy

    async def enable(self, name: str, enabled: bool) -> Policy:
        """Switch a policy on or off.

        Raises:
            ModelNotFound: there is no policy of that name.
            RouterError: it could not be written; nothing was changed.
        """
        async with self._order:
            entry = self._entry(name)
            policy = msgspec.structs.replace(entry.policy, enabled=enabled)
            if policy != entry.policy:
                await self._write(policy, {**entry.document, "enabled": enabled})
            return policy

    async def delete(self, name: str) -> None:
        """Remove a policy and its file.

        Raises:
            ModelNotFound: there is no policy of that name.
            RouterError: its file could not be removed; nothing was changed.
        """
        async with self._order:
            entry = self._entry(name)
            try:
                await asyncio.to_thread(entry.file.unlink, True)
            except OSError as error:
                raise _not_written(entry.file, error) from error
            self._put({n: e for n, e in self._entries.items() if n != name}, self._faults)

    def document(self, name: str) -> dict[str, Any]:
        """The document of a policy as it was written, its switch included.

        Raises:
            ModelNotFound: there is no policy of that name.
        """
        return dict(self._entry(name).document)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            near = near_matches(name, self._entries, 3)
            advice = f"; near matches: {', '.join(near)}" if near else ""
            raise ModelNotFound(f"There is no policy {name}{advice}.", param="model")
        return entry

    async def _write(self, policy: Policy, document: dict[str, Any]) -> None:
        known = self._entries.get(policy.name)
        file = known.file if known else self.folder / file_name(policy.name)
        try:
            data = write_object(document)
            await asyncio.to_thread(write_atomically, file, data)
        except OSError as error:
            raise _not_written(file, error) from error
        faults = {path: fault for path, fault in self._faults.items() if path != file}
        self._put({**self._entries, policy.name: _Entry(policy, document, file, _digest(data))}, faults)

    def _put(self, entries: Mapping[str, _Entry], faults: Mapping[Path, str]) -> bool:
        for path, fault in faults.items():
            if self._faults.get(path) != fault:
                log.warning("%s: %s", path, fault)
        self._faults = dict(faults)
        self._entries = dict(sorted(entries.items()))
        policies = {name: entry.policy for name, entry in self._entries.items()}
        if policies == dict(self._policies):
            return False
        self._policies = MappingProxyType(policies)
        if self.on_change is not None:
            self.on_change()
        return True


def file_name(name: str) -> str:
    """A file name for a policy of this name: readable, allowed everywhere, and different for different names
    even where upper and lower case are one."""
    readable = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:60] or "policy"
    return f"{readable}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}.json"


def _read_folder(
    folder: Path, known: Mapping[Path, _Entry] = MappingProxyType({})
) -> tuple[dict[str, _Entry], dict[Path, str]]:
    # The folder is looked at every few seconds, and to parse a file takes much longer than to read it: one
    # whose contents are known is not parsed again.
    entries: dict[str, _Entry] = {}
    faults: dict[Path, str] = {}
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix == ".json" and not p.name.startswith("."))
    except FileNotFoundError:
        return entries, faults
    except OSError as error:
        return entries, {folder: f"it cannot be read ({error.strerror or error})"}
    for file in files:
        try:
            entry = _entry_of(file, _read(file), known.get(file))
        except FileNotFoundError:
            continue
        except OSError as error:
            faults[file] = f"it cannot be read ({error.strerror or error})"
        except PolicyFault as fault:
            faults[file] = fault.message
        else:
            other = entries.get(entry.policy.name)
            if other is None:
                entries[entry.policy.name] = entry
            else:
                faults[file] = f"$.model_name: {other.file.name} holds a policy of this name, and is used"
    return entries, faults


def _entry_of(file: Path, data: bytes, known: _Entry | None) -> _Entry:
    digest = _digest(data)
    if known is not None and known.digest == digest:
        return known
    document = decode(data)
    return _Entry(parse_policy(document), document, file, digest)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _read(file: Path) -> bytes:
    if not file.is_file():
        # A pipe of that name would keep the reader waiting.
        raise OSError("it is no regular file")
    with file.open("rb") as opened:
        data = opened.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise OSError(f"it is larger than {MAX_SIZE >> 20} MiB")
    return data


def _not_written(file: Path, error: OSError) -> RouterError:
    return RouterError(
        f"{file} could not be written ({error.strerror or error}); nothing was changed.",
        code="policy_not_written",
        hint="Check the free space and the permissions of that folder.",
    )
