"""What models do: the types of models, each with a pool of its own."""

from __future__ import annotations

from typing import Final

LLM: Final = "llm"
EMBEDDING: Final = "embedding"
RERANKING: Final = "reranking"
TYPES: Final = (LLM, EMBEDDING, RERANKING)

#: A model of each type, as sentences have it.
A_MODEL: Final = {
    LLM: "a language model",
    EMBEDDING: "an embedding model",
    RERANKING: "a reranking model",
}
