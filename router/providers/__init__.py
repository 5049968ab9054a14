"""Remote providers: OpenAI-compatible endpoints elsewhere whose models are used as if they were here."""
