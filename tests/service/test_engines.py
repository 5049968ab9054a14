"""The engines of a machine: what is shown, which is chosen, and what can be done with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from router.engines.base import Capabilities, EngineDevice
from router.engines.builds import Build
from router.engines.releases import Asset, Machine, Offer
from router.errors import BadRequest, Conflict, NotFound, RouterError
from router.service.downloads import Downloads, Progress
from router.service.engines import Engines

CARD = EngineDevice("Vulkan0", "vulkan", "A Card", 1 << 33)
ID = "b100-vulkan"
HOME = "/usr/bin/llama-server"


class FakeBuilds:
    """A folder of builds that needs neither disk nor network."""

    def __init__(self) -> None:
        self.machine = Machine("linux", "x86_64")
        self.here: dict[str, Build] = {}
        self.offers: tuple[Offer, ...] = ()
        self.found: tuple[Offer, ...] = ()
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: RouterError | None = None
        self.fetched: list[str | None] = []

    @property
    def installed(self) -> tuple[Build, ...]:
        return tuple(self.here.values())

    @property
    def suitable(self) -> tuple[str, ...]:
        return ("vulkan",) if self.machine.backends else ()

    def program(self, id: str) -> Path:
        return Path("/data/engines") / id / "llama-server"

    async def load(self) -> None:
        pass

    async def refresh_offers(self) -> tuple[Offer, ...]:
        self.offers = self.found
        return self.offers

    async def get(self, wanted: str | None, progress: Callable[[int, int], None]) -> Build:
        self.fetched.append(wanted)
        progress(1, 2)
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        build = Build(ID, "b100", "vulkan", {}, 1 << 28, "llama-server")
        self.here[ID] = build
        return build

    async def remove(self, id: str) -> None:
        if id not in self.here:
            raise NotFound(f"There is no build {id}.")
        if self.refusal is not None:
            raise self.refusal
        del self.here[id]


class Bench:
    """Engines on a machine that a test makes up."""

    def __init__(self) -> None:
        self.builds = FakeBuilds()
        self.programs: list[Path] = []
        self.reach: dict[str, tuple[EngineDevice, ...]] = {}
        self.problems: dict[str, str] = {}
        self.changes: list[Mapping[str, Any]] = []
        self.shown = 0
        self.asked_again = 0
        self.downloads = Downloads(self._change)
        self.engines = self.make()

    def make(self, setting: str = "auto") -> Engines:
        return Engines(
            self.builds,  # type: ignore[arg-type]  # as much of it as is needed
            self.downloads,
            probe=self.probe,
            find=self.find,
            change=self.change,
            on_change=self._change,
            setting=setting,
        )

    async def probe(self, path: Path | None, *, again: bool = False) -> Capabilities:
        self.asked_again += again
        id = "embedded" if path is None else str(path)
        return Capabilities(
            id, "An engine", "1.0", id, self.reach.get(id, ()), problem=self.problems.get(id, "")
        )

    def find(self) -> list[Path]:
        return self.programs

    async def change(self, changes: Mapping[str, Any]) -> int:
        self.changes.append(changes)
        return 1

    def _change(self) -> None:
        self.shown += 1

    def kinds(self) -> dict[str, str]:
        return {view.id: view.kind for view in self.engines.views}


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def offer(tag: str = "b100") -> Offer:
    return Offer(
        f"{tag}-vulkan", tag, "vulkan", (Asset("x.tar.gz", "https://x", 1 << 26, f"sha256:{'0' * 64}"),)
    )


async def test_the_embedded_engine_is_always_there(bench: Bench) -> None:
    await bench.engines.start()
    (view,) = bench.engines.views
    assert (view.id, view.kind, view.in_use, view.devices, view.path) == (
        "embedded",
        "embedded",
        True,
        (),
        "",
    )
    assert bench.engines.chosen is not None
    assert bench.shown


async def test_a_gpu_brings_an_offer_without_asking_anybody(bench: Bench) -> None:
    await bench.engines.start()
    bench.engines.set_gpus(["", "simulated"])
    assert bench.kinds() == {"embedded": "embedded"}
    bench.engines.set_gpus(["vulkan"])
    assert bench.kinds() == {"embedded": "embedded", "vulkan": "offer"}
    (view,) = [view for view in bench.engines.views if view.kind == "offer"]
    assert (view.title, view.backends, view.size) == ("llama.cpp (Vulkan)", ("vulkan",), 0)
    bench.builds.found = (offer(),)
    await bench.engines.refresh()
    (view,) = [view for view in bench.engines.views if view.kind == "offer"]
    assert (view.id, view.version, view.size) == (ID, "b100", 1 << 26)


async def test_a_fetched_build_is_shown_and_chosen(bench: Bench) -> None:
    await bench.engines.start()
    bench.engines.set_gpus(["vulkan"])
    program = str(bench.builds.program(ID))
    bench.reach[program] = (CARD,)
    end = await bench.engines.get()
    await end
    assert bench.engines.choice.id == ID
    assert bench.kinds() == {"embedded": "embedded", ID: "build"}
    (view,) = [view for view in bench.engines.views if view.kind == "build"]
    assert (view.title, view.devices, view.path, view.size, view.in_use) == (
        "llama.cpp b100 (Vulkan)",
        ("A Card",),
        program,
        1 << 28,
        True,
    )
    assert bench.downloads.views[0].state == "done"
    bench.builds.found = (offer(), offer("b101"))
    await bench.engines.refresh()
    assert [id for id, kind in bench.kinds().items() if kind == "offer"] == ["b101-vulkan"]


async def test_two_gets_are_one_download(bench: Bench) -> None:
    await bench.engines.start()
    bench.builds.gate.clear()
    first, second = await bench.engines.get(), await bench.engines.get()
    bench.builds.gate.set()
    await asyncio.gather(first, second)
    assert bench.builds.fetched == [None]


async def test_a_fetch_that_fails_changes_nothing(bench: Bench) -> None:
    await bench.engines.start()
    bench.builds.refusal = RouterError("No.", code="download_failed")
    with pytest.raises(RouterError, match="No"):
        await (await bench.engines.get("vulkan"))
    assert bench.downloads.views[0].state == "failed"
    assert bench.kinds() == {"embedded": "embedded"}


async def test_a_fetch_that_breaks_does_not_seem_to_run_for_ever() -> None:
    async def breaks(_: Progress) -> None:
        raise OSError("the disk is gone")

    downloads = Downloads(lambda: None)
    with pytest.raises(OSError, match="disk"):
        await downloads.begin("x", breaks)
    assert [(view.state, view.error) for view in downloads.views] == [("failed", "OSError: the disk is gone")]


async def test_a_mistyped_build_is_no_download(bench: Bench) -> None:
    await bench.engines.start()
    with pytest.raises(NotFound, match="no build nope"):
        await bench.engines.get("nope")
    assert not bench.downloads.views


async def test_programs_of_the_users_are_found(bench: Bench) -> None:
    bench.programs = [Path(HOME)]
    bench.reach[HOME] = (CARD,)
    await bench.engines.start()
    assert bench.kinds() == {"embedded": "embedded", HOME: "found"}
    assert bench.engines.choice.id == HOME


async def test_the_setting_is_obeyed(bench: Bench) -> None:
    bench.programs = [Path(HOME)]
    bench.reach[HOME] = (CARD,)
    bench.engines = bench.make("embedded")
    await bench.engines.start()
    assert bench.engines.choice.id == "embedded"
    bench.engines.configure("auto")
    assert bench.engines.choice.id == HOME
    bench.engines.configure("b7-vulkan")
    assert "There is no engine b7-vulkan." in bench.engines.choice.problem
    await bench.engines.close()


async def test_a_path_in_the_settings_is_looked_at(bench: Bench) -> None:
    bench.engines = bench.make("/opt/mine")
    await bench.engines.start()
    assert bench.engines.choice.id == "/opt/mine"
    assert bench.kinds()["/opt/mine"] == "found"


async def test_a_new_path_in_the_settings_is_looked_at(bench: Bench) -> None:
    await bench.engines.start()
    looked = asyncio.Event()
    probe = bench.probe

    async def look(path: Path | None, *, again: bool = False) -> Capabilities:
        found = await probe(path, again=again)
        asyncio.get_running_loop().call_soon(looked.set)
        return found

    bench.probe = look  # type: ignore[method-assign]  # to hear of it
    bench.engines = bench.make()
    await bench.engines.start()
    looked.clear()
    bench.engines.configure("/opt/mine")
    assert bench.engines.choice.id == "embedded"
    await asyncio.wait_for(looked.wait(), 20)
    assert bench.engines.choice.id == "/opt/mine"


async def test_use_sets_the_setting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    bench.programs = [Path(HOME)]
    await bench.engines.start()
    for id in ("embedded", HOME, "/opt/other", "auto"):
        await bench.engines.use(id)
        assert bench.changes[-1] == {"engine": id}
    assert bench.asked_again == 2
    await bench.engines.use("~/llama-server")
    assert bench.changes[-1] == {"engine": "/home/someone/llama-server"}
    assert bench.engines.choice.id == "/home/someone/llama-server"


async def test_use_refuses_what_cannot_be_used(bench: Bench) -> None:
    await bench.engines.start()
    bench.engines.set_gpus(["vulkan"])
    bench.problems["/opt/broken"] = "it is not a program"
    with pytest.raises(BadRequest, match="it is not a program"):
        await bench.engines.use("/opt/broken")
    with pytest.raises(NotFound, match="no engine b7-vulkan here"):
        await bench.engines.use("b7-vulkan")
    with pytest.raises(NotFound) as caught:
        await bench.engines.use("vulkan")
    assert caught.value.hint == "Fetch it first: lemon-tray engine get vulkan."
    assert bench.changes == []


async def test_remove(bench: Bench) -> None:
    bench.programs = [Path(HOME)]
    bench.reach[str(bench.builds.program(ID))] = (CARD,)
    await bench.engines.start()
    await (await bench.engines.get())
    for id in ("embedded", HOME):
        with pytest.raises(BadRequest, match="not fetched by Lemon Tray"):
            await bench.engines.remove(id)
    with pytest.raises(NotFound):
        await bench.engines.remove("b7-vulkan")
    await bench.engines.use(ID)
    with pytest.raises(Conflict, match="names") as caught:
        await bench.engines.remove(ID)
    assert "engine use auto" in (caught.value.hint or "")
    await bench.engines.use("auto")
    bench.builds.refusal = Conflict("A model runs on it.")
    with pytest.raises(Conflict, match="runs on it"):
        await bench.engines.remove(ID)
    assert bench.engines.choice.id == ID
    bench.builds.refusal = None
    await bench.engines.remove(ID)
    assert bench.engines.choice.id == "embedded"
    assert bench.kinds() == {"embedded": "embedded", HOME: "found"}
