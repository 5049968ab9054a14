"""A local router for language models: one OpenAI endpoint, many models, memory watched per device."""
