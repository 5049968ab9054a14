"""How people name a model of the hub, and which files of a repository they mean by it."""

from __future__ import annotations

import pytest

from router.catalog.hub import (
    HubFile,
    Listing,
    Reference,
    among,
    choose,
    is_safe_path,
    looks_like_reference,
    models_of,
    parse_reference,
)
from router.catalog.model import Identity, Model
from router.errors import BadRequest, Conflict, NotFound, RouterError

HASH = "a" * 64


def listing(*paths: str, size: int = 1 << 30) -> Listing:
    return Listing("o/r", "c" * 40, tuple(HubFile(path, size, HASH) for path in paths))


def chosen(wanted: str, *paths: str) -> list[str]:
    return [file.path for file in choose(listing(*paths), Reference("o/r", wanted)).all_files]


@pytest.mark.parametrize(
    ("text", "repo", "wanted", "revision"),
    [
        ("owner/repo", "owner/repo", "", "main"),
        ("owner/repo:Q4_K_M", "owner/repo", "Q4_K_M", "main"),
        ("owner/repo:latest", "owner/repo", "", "main"),
        ("owner/repo:sub/file-Q8_0.gguf", "owner/repo", "sub/file-Q8_0.gguf", "main"),
        ("owner/repo@v2:Q8_0", "owner/repo", "Q8_0", "v2"),
        ("owner/repo:Q8_0@v2", "owner/repo", "Q8_0", "v2"),
        ("owner/repo@refs/pr/3", "owner/repo", "", "refs/pr/3"),
        (" hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL ", "unsloth/Qwen3-8B-GGUF", "UD-Q4_K_XL", "main"),
        ("https://huggingface.co/o/r.x_1", "o/r.x_1", "", "main"),
        ("https://huggingface.co/o/r/blob/main/a/b.gguf?download=true", "o/r", "a/b.gguf", "main"),
        ("https://huggingface.co/o/r/resolve/dev/b.gguf", "o/r", "b.gguf", "dev"),
        ("https://huggingface.co/o/r/tree/dev", "o/r", "", "dev"),
        ("hf://o/r:q4_0", "o/r", "q4_0", "main"),
    ],
)
def test_names_that_are_understood(text: str, repo: str, wanted: str, revision: str) -> None:
    found = parse_reference(text)
    assert found == Reference(repo, wanted, revision)
    assert parse_reference(str(found)) == found
    assert looks_like_reference(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llama3.2",
        "owner/",
        "/repo",
        "a/b/c",
        "../x",
        "o/..",
        "o/r..x",
        "o--x/r",
        "o/r.git",
        "o/-r",
        "o/r:../../x.gguf",
        "o/r:/etc/passwd",
        "o/r:a\\b.gguf",
        "o/r@../main",
        "o/r@/x",
        "o/r:a\0b",
        "https://example.com/o/r",
        "https://evil.huggingface.co/o/r",
        "o/" + "r" * 200,
        "o/r:" + "q" * 2000,
    ],
)
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_reference(text)
    assert "owner/repo" in (caught.value.hint or "")
    assert len(caught.value.message) < 300
    assert not looks_like_reference(text)


@pytest.mark.parametrize("path", ["a.gguf", "a/b c.gguf", "é/ü.gguf", "a..b/c.gguf", "console.gguf"])
def test_paths_that_can_be_kept(path: str) -> None:
    assert is_safe_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a//b", "./a", "a/..", "..", "a/", "c:a", "a\\b", "aux.gguf", "a./b", "a\nb", "x" * 2000],
)
def test_paths_that_can_not(path: str) -> None:
    assert not is_safe_path(path)


QUANTS = ("M-Q4_K_M.gguf", "M-Q8_0.gguf", "M-UD-Q4_K_XL.gguf", "M-F16.gguf", "README.md", "imatrix.gguf")


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("", "M-Q4_K_M.gguf"),
        ("q4_k_m", "M-Q4_K_M.gguf"),
        ("Q4_K_XL", "M-UD-Q4_K_XL.gguf"),
        ("UD-Q4_K_XL", "M-UD-Q4_K_XL.gguf"),
        ("fp16", "M-F16.gguf"),
        ("M-Q8_0", "M-Q8_0.gguf"),
        ("m-q8_0.gguf", "M-Q8_0.gguf"),
    ],
)
def test_a_quantization_or_a_name_means_its_file(wanted: str, path: str) -> None:
    assert chosen(wanted, *QUANTS) == [path]


def test_the_only_model_is_meant_whatever_it_is_called() -> None:
    assert chosen("", "odd name.gguf", "mmproj-x.gguf") == ["odd name.gguf", "mmproj-x.gguf"]


def test_what_is_not_there_is_answered_with_what_is() -> None:
    with pytest.raises(NotFound, match=r"no Q5_K_M\. It has Q4_K_M \(1\.0.GiB\), Q8_0"):
        chosen("Q5_K_M", "M-Q4_K_M.gguf", "M-Q8_0.gguf")
    with pytest.raises(NotFound, match="no GGUF") as caught:
        chosen("", "model.safetensors", "mmproj-F16.gguf")
    assert "o/r-GGUF" in (caught.value.hint or "")


def test_what_could_mean_several_is_answered_with_them() -> None:
    with pytest.raises(Conflict, match=r"A-Q4_0 \(.*B-Q4_0 \(") as caught:
        chosen("Q4_0", "A-Q4_0.gguf", "B-Q4_0.gguf", "B-Q8_0.gguf")
    assert caught.value.hint == "Name one: o/r:A-Q4_0."
    with pytest.raises(Conflict, match="has several: Q5_0"):
        chosen("", "A-Q5_0.gguf", "A-Q8_0.gguf")
    with pytest.raises(Conflict, match=r"x/A-Q4_0\.gguf.*y/A-Q4_0\.gguf"):
        chosen("Q4_0", "x/A-Q4_0.gguf", "y/A-Q4_0.gguf")
    assert chosen("y/A-Q4_0.gguf", "x/A-Q4_0.gguf", "y/A-Q4_0.gguf") == ["y/A-Q4_0.gguf"]
    many = [f"M{number}-Q4_0.gguf" for number in range(40)]
    with pytest.raises(Conflict, match="28 more"):
        chosen("Q4_0", *many)


def test_shards_are_one_model_and_a_missing_one_is_said() -> None:
    shards = [f"big/B-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for wanted in ("", "q4_k_m", "B-Q4_K_M", shards[0], "big"):
        assert chosen(wanted, *reversed(shards), "B-Q8_0.gguf") == shards
    assert models_of(listing(*shards))[0].size == 3 << 30
    with pytest.raises(RouterError, match="2 of the 3 files"):
        chosen("", *shards[:2])
    with pytest.raises(RouterError, match="of the 99999 files"):
        chosen("", "B-00001-of-99999.gguf")


@pytest.mark.parametrize(
    ("projectors", "taken"),
    [
        (("mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"), "mmproj-F16.gguf"),
        (("mmproj-BF16.gguf", "mmproj-F32.gguf"), "mmproj-BF16.gguf"),
        (("mmproj-model-f16.gguf",), "mmproj-model-f16.gguf"),
        (("M-mmproj-f16.gguf", "mmproj-Q8_0.gguf"), "M-mmproj-f16.gguf"),
        (("sub/mmproj-F16.gguf",), None),
    ],
)
def test_the_projector_comes_along(projectors: tuple[str, ...], taken: str | None) -> None:
    assert chosen("Q4_K_M", "M-Q4_K_M.gguf", "M-Q8_0.gguf", *projectors)[1:] == ([taken] if taken else [])


def test_of_several_families_each_has_its_own_projector() -> None:
    files = ("A-Q4_0.gguf", "B-Q4_0.gguf", "mmproj-A-F16.gguf", "mmproj-C-F16.gguf")
    assert chosen("A-Q4_0", *files) == ["A-Q4_0.gguf", "mmproj-A-F16.gguf"]
    assert chosen("B-Q4_0", *files) == ["B-Q4_0.gguf"]


def test_drafts_and_matrices_are_no_models() -> None:
    drafts = ("mtp-M-Q8_0.gguf", "M-draft.gguf", "eagle3-M-Q8_0.gguf")
    assert chosen("", "M-Q8_0.gguf", *drafts, "M.imatrix.gguf") == ["M-Q8_0.gguf"]


@pytest.mark.parametrize("wanted", ["", "MXFP4"])
def test_of_a_model_that_is_there_as_a_whole_and_in_shards_the_whole_is_meant(wanted: str) -> None:
    shards = [f"m-mxfp4-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert chosen(wanted, "m-MXFP4.gguf", *shards) == ["m-MXFP4.gguf"]
    assert chosen(shards[1], "m-MXFP4.gguf", *shards) == shards
    with pytest.raises(Conflict):
        chosen(wanted, "m-MXFP4.gguf", "n-MXFP4.gguf")


HERE = {
    name: Model(name, "", "llm", 0, Identity(name, 0, 0), aliases=aliases)
    for name, aliases in {
        "o/One-GGUF:Q8_0": ("One-Q8_0",),
        "o/Two-GGUF:Q4_K_M": (),
        "o/Two-GGUF:UD-Q4_K_XL": (),
        "o/Odd-GGUF:first": (),
        "o/Odd-GGUF:second": (),
        "plain": (),
    }.items()
}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("hf.co/o/One-GGUF:Q8_0", "o/One-GGUF:Q8_0"),
        ("huggingface.co/O/one-gguf:q8_0", "o/One-GGUF:Q8_0"),
        ("hf.co/o/One-GGUF", "o/One-GGUF:Q8_0"),
        ("o/One-GGUF:latest", "o/One-GGUF:Q8_0"),
        ("o/One-GGUF:sub/One-Q8_0.gguf", "o/One-GGUF:Q8_0"),
        ("https://huggingface.co/o/One-GGUF/blob/main/One-Q8_0.gguf", "o/One-GGUF:Q8_0"),
        ("o/Two-GGUF", "o/Two-GGUF:Q4_K_M"),
        ("o/Two-GGUF:q4_k_xl", "o/Two-GGUF:UD-Q4_K_XL"),
        ("o/Odd-GGUF", None),
        ("o/Odd-GGUF:second.gguf", "o/Odd-GGUF:second"),
        ("o/One-GGUF:Q4_0", None),
        ("o/One-GGUF@v2", None),
        ("o/Three-GGUF", None),
        ("o/One", None),
        ("plain", None),
        ("../plain", None),
        ("", None),
    ],
)
def test_a_model_that_is_here_answers_to_the_names_it_is_pulled_by(asked: str, found: str | None) -> None:
    model = among(asked, HERE.values())
    assert (model.name if model is not None else None) == found
