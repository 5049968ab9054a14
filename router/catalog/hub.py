"""Repositories of the Hugging Face hub: how people name a model in one, and which of its files are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from router.catalog.model import Model
from router.catalog.scan import PROJECTOR, SHARD, family, is_draft, quant_of
from router.catalog.survey import SUFFIX
from router.errors import BadRequest, Conflict, NotFound, RouterError
from router.units import MIB, gib

#: Taken where a repository has several and nobody says which: small, and hardly worse than larger ones.
USUAL_QUANT: Final = "Q4_K_M"
MAIN: Final = "main"

_HOSTS: Final = ("hf.co", "huggingface.co", "www.huggingface.co")
_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REVISION: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/+-]{0,198}[A-Za-z0-9_+-])?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
#: Projectors by the ends of their names, the best first.
_PRECISIONS: Final = ("f16", "bf16", "q8_0", "f32")
#: Names that Windows takes for devices, whatever ending they have.
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_FORM: Final = (
    "Write owner/repo, owner/repo:Q4_K_M, owner/repo:file.gguf, hf.co/owner/repo:Q4_K_M, and @REVISION after "
    "the repository for another one than main."
)
#: As many alternatives as a message names.
_NAMED: Final = 12


class Reference(Struct, frozen=True):
    """A model as people ask for it.

    Attributes:
        repo: `owner/name`.
        wanted: a quantization, or a file's name or path; "" for what is usual.
        revision: a branch, a tag or a commit.
    """

    repo: str
    wanted: str = ""
    revision: str = MAIN

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision != MAIN else ""
        return f"{self.repo}{at}:{self.wanted}" if self.wanted else f"{self.repo}{at}"


class HubFile(Struct, frozen=True):
    """A file of a repository: its path with forward slashes, bytes, SHA-256 in hex ("" if unknown)."""

    path: str
    size: int
    sha256: str = ""

    @property
    def stem(self) -> str:
        """Its name without folder and ending."""
        return self.path.rpartition("/")[2][: -len(SUFFIX)]

    @property
    def folder(self) -> str:
        """Where in the repository it is; "" for the top."""
        return self.path.rpartition("/")[0]


class Listing(Struct, frozen=True):
    """What a repository holds at one commit. `gated` tells that its owner decides who may have the files."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]
    gated: bool = False


class HubModel(Struct, frozen=True):
    """One model of a repository: its shards in order, and its projector.

    `quant` is as the name of the file has it, in upper case; "" if it names none.
    """

    stem: str
    quant: str
    files: tuple[HubFile, ...]
    projector: HubFile | None = None

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.all_files)

    @property
    def all_files(self) -> tuple[HubFile, ...]:
        """Its files and its projector."""
        return (*self.files, self.projector) if self.projector is not None else self.files


def parse_reference(text: str) -> Reference:
    """Read how people name a model of the hub, also as its address.

    Raises:
        BadRequest: it is no such name; the message says how one is written.
    """
    rest = text.strip()
    rest = re.sub(r"^(?:https?|hf)://", "", rest, count=1)
    host, slash, path = rest.partition("/")
    if slash and host.lower() in _HOSTS:
        rest = path.partition("?")[0].partition("#")[0]
    page = re.fullmatch(r"([^/]+/[^/]+)/(?:blob|resolve|tree)/([^/]+)(?:/(.+))?", rest)
    if page is not None:
        repo, revision, wanted = page[1], page[2], page[3] or ""
        return _checked(text, repo, wanted, revision)
    repo, _, wanted = rest.strip("/").partition(":")
    repo, _, revision = repo.partition("@")
    if not revision and "@" in wanted:
        wanted, _, revision = wanted.rpartition("@")
    return _checked(text, repo, "" if wanted.lower() == "latest" else wanted, revision or MAIN)


def looks_like_reference(text: str) -> bool:
    """Whether somebody may mean a model of the hub by that name."""
    try:
        parse_reference(text)
    except BadRequest:
        return False
    return True


def among(text: str, models: Iterable[Model]) -> Model | None:
    """The model that is here already and that somebody means who writes how it is pulled.

    None if there is none, or if several could be meant.
    """
    if "/" not in text:
        return None
    try:
        reference = parse_reference(text)
    except BadRequest:
        return None
    start = f"{reference.repo}:".casefold()
    ends = {
        model.name.casefold()[len(start) :]: model
        for model in models
        if model.name.casefold().startswith(start)
    }
    if reference.revision != MAIN or not ends:
        return None
    wanted = reference.wanted.casefold().removesuffix(SUFFIX)
    if not wanted:
        return next(iter(ends.values())) if len(ends) == 1 else ends.get(USUAL_QUANT.casefold())
    if wanted in ends:
        return ends[wanted]
    stem = wanted.rpartition("/")[2]
    found = [
        model
        for end, model in ends.items()
        if _plain(end) == _plain(wanted) or stem in (alias.casefold() for alias in model.aliases)
    ]
    return found[0] if len(found) == 1 else None


def _checked(text: str, repo: str, wanted: str, revision: str) -> Reference:
    owner, _, name = repo.partition("/")
    for part in (owner, name):
        if not _PART.fullmatch(part) or ".." in part or "--" in part or part.endswith((".git", ".ipynb")):
            raise BadRequest(
                f"{_short(text)} names no repository of the Hugging Face hub.", param="model_name", hint=_FORM
            )
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise BadRequest(f"{_short(revision)} is no revision.", param="model_name", hint=_FORM)
    if wanted and not is_safe_path(wanted):
        raise BadRequest(
            f"{_short(wanted)} is neither a quantization nor a file's name.", param="model_name", hint=_FORM
        )
    return Reference(repo, wanted, revision)


def is_safe_path(path: str) -> bool:
    """Whether a path can be kept below a folder on any system: relative, and leading nowhere else."""
    if not path or len(path) > 1024 or not path.isprintable() or any(char in path for char in '\\:*?"<>|'):
        return False
    return all(
        part not in ("", ".", "..") and not part.endswith((".", " ")) and not _DEVICES.fullmatch(part)
        for part in path.split("/")
    )


def check_listing(listing: Listing) -> Listing:
    """See to it that what a server tells can be worked with.

    Raises:
        RouterError: a file's name leads elsewhere, or the commit is none.
    """
    if not _COMMIT.fullmatch(listing.commit):
        raise RouterError(f"The hub names no commit for {listing.repo}.", code="download_failed", status=502)
    for file in listing.files:
        if file.path.lower().endswith(SUFFIX) and not is_safe_path(file.path):
            raise RouterError(
                f"{listing.repo} is not fetched: the name of one of its files, {_short(file.path)}, could "
                "lead out of the folder that it would be kept in.",
                code="unsafe_path",
                status=502,
            )
    return listing


def choose(listing: Listing, reference: Reference) -> HubModel:
    """The model that is meant, with the projector that goes with it.

    Raises:
        NotFound: there is none; the message lists those there are.
        Conflict: several could be meant; the message lists them.
        RouterError: a shard is missing, or the hub does not tell a file's SHA-256.
    """
    models = models_of(listing)
    if not models:
        raise NotFound(
            f"{listing.repo} has no GGUF model.",
            code="no_gguf",
            param="model_name",
            hint=f"GGUF files of a model are often in a repository named like {listing.repo}-GGUF.",
        )
    found = _meant(models, reference.wanted)
    if not found:
        raise NotFound(
            f"{listing.repo} has no {_short(reference.wanted)}. It has {_names(models)}.",
            code="no_such_file",
            param="model_name",
        )
    if len(found) > 1:
        what = f"several models that {_short(reference.wanted)} could mean" if reference.wanted else "several"
        raise Conflict(
            f"{listing.repo} has {what}: {_names(found)}.",
            code="ambiguous_model",
            param="model_name",
            hint=f"Name one: {listing.repo}:{_name(found[0], found)}.",
        )
    model = found[0]
    _check_whole(listing, model)
    return model


def models_of(listing: Listing) -> tuple[HubModel, ...]:
    """All models of a repository, by path, with what lies beside them."""
    sets: dict[tuple[str, str, str], list[HubFile]] = {}
    projectors: list[HubFile] = []
    for file in sorted(listing.files, key=lambda file: file.path):
        if not file.path.lower().endswith(SUFFIX):
            continue
        stem = file.stem.lower()
        if PROJECTOR in stem:
            projectors.append(file)
        elif not is_draft(file.stem) and not re.search(r"(?:^|[-_.])imatrix(?:$|[-_.])", stem):
            shard = SHARD.match(file.stem)
            key = (file.folder, shard["base"] if shard else file.stem, shard["count"] if shard else "")
            sets.setdefault(key, []).append(file)
    families = {family(base) for _, base, _ in sets}
    return tuple(
        HubModel(base, quant_of(base), tuple(files), _projector(projectors, base, folder, families))
        for (folder, base, _), files in sets.items()
    )


def _projector(projectors: Iterable[HubFile], base: str, folder: str, families: set[str]) -> HubFile | None:
    """One named like the model, or like none, in its folder or above; the best precision of those."""

    def rank(file: HubFile) -> tuple[int, int, int, str]:
        own = family(file.stem)
        like = 0 if own == family(base) else 1 if not own else 2
        near = 0 if file.folder == folder else 1
        ends = [number for number, end in enumerate(_PRECISIONS) if file.stem.lower().endswith(end)]
        # "bf16" ends with "f16", too: of the two the later one counts.
        return like, near, max(ends, default=len(_PRECISIONS)), file.path

    fitting = [
        file
        for file in projectors
        if file.folder in (folder, "") and (rank(file)[0] < 2 or len(families) == 1)
    ]
    return min(fitting, key=rank, default=None)


def _meant(models: Sequence[HubModel], wanted: str) -> list[HubModel]:
    if not wanted:
        if len(models) == 1:
            return list(models)
        usual = [model for model in models if model.quant == USUAL_QUANT]
        return _unparted(usual or list(models))
    asked = wanted.casefold()
    named = asked if asked.endswith(SUFFIX) else f"{asked}{SUFFIX}"
    tests = (
        lambda model: any(file.path.casefold() == named for file in model.files),
        lambda model: any(file.path.casefold().endswith(f"/{named}") for file in model.files),
        lambda model: model.stem.casefold() in (asked, asked.removesuffix(SUFFIX)),
        lambda model: model.quant.casefold() == asked,
        lambda model: _plain(model.quant) == _plain(asked) != "",
        lambda model: model.files[0].folder.casefold() == asked,
    )
    for test in tests:
        found = [model for model in models if test(model)]
        if found:
            return _unparted(found)
    return []


def _unparted(found: list[HubModel]) -> list[HubModel]:
    """Of one model that is there as a whole and in shards, the one with fewer files."""
    if len({(model.stem.casefold(), model.files[0].folder) for model in found}) > 1:
        return found
    return [min(found, key=lambda model: len(model.files))]


def _plain(quant: str) -> str:
    """A quantization without what some put before it, and with one spelling of 16 bits."""
    return re.sub(r"^ud[-_]", "", quant.casefold()).replace("fp16", "f16").replace("fp32", "f32")


def _check_whole(listing: Listing, model: HubModel) -> None:
    shard = SHARD.match(model.files[0].stem)
    if shard is not None:
        count = int(shard["count"])
        numbers = [int(match["number"]) for file in model.files if (match := SHARD.match(file.stem))]
        if numbers != list(range(1, count + 1)):
            raise RouterError(
                f"{listing.repo} has {len(numbers)} of the {count} files of {model.stem}: it cannot be used.",
                code="incomplete_repository",
                status=502,
            )
    for file in model.all_files:
        if not _SHA256.fullmatch(file.sha256) or file.size <= 0:
            raise RouterError(
                f"The hub tells no SHA-256 of {file.path} in {listing.repo}, so it could not be checked.",
                code="no_digest",
                status=502,
                hint="It is not kept as a large file there (LFS). Its owner can mend that.",
            )


def _names(models: Sequence[HubModel]) -> str:
    names = [f"{_name(model, models)} ({_size(model.size)})" for model in models[:_NAMED]]
    if len(models) > _NAMED:
        names.append(f"{len(models) - _NAMED} more")
    return ", ".join(names)


def _name(model: HubModel, among: Sequence[HubModel]) -> str:
    """The shortest name that means this one only."""
    if model.quant and [other.quant for other in among].count(model.quant) == 1:
        return model.quant
    if [other.stem for other in among].count(model.stem) == 1:
        return model.stem
    return model.files[0].path


def _size(size: int) -> str:
    return gib(size) if size >= 1 << 30 else f"{size / MIB:.0f}\N{NO-BREAK SPACE}MiB"


def _short(text: str) -> str:
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return printable if len(printable) <= 80 else f"{printable[:79]}…"
