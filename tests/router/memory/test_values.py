"""All single values of a file's metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import ConfigError
from router.memory.gguf import MAX_TEXT_BYTES, read_values
from tests.support import gguf


def test_texts_and_numbers_are_read_and_lists_are_not(tmp_path: Path) -> None:
    template = "{{ tools }}" * 9000
    extra = {
        "tokenizer.chat_template": template,
        "general.license": "MIT",
        "some.flag": True,
        "some.list": [1],
    }
    path = gguf.write_model(tmp_path / "m.gguf", context=2048, extra=extra)
    values = read_values(path)
    assert values["tokenizer.chat_template"] == template
    assert (values["general.license"], values["some.flag"]) == ("MIT", True)
    assert values["llama.context_length"] == 2048
    assert not {"some.list", "tokenizer.ggml.tokens"} & set(values)


def test_a_text_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    extra = {"long": "x" * (MAX_TEXT_BYTES + 1), "after": "yes"}
    values = read_values(gguf.write_model(tmp_path / "m.gguf", extra=extra))
    assert "long" not in values
    assert values["after"] == "yes"


@pytest.mark.fault("F26")
def test_a_file_that_is_cut_in_its_metadata(tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf", extra={"tokenizer.chat_template": "x" * 5000})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ConfigError, match="ends inside its header"):
        read_values(path)
