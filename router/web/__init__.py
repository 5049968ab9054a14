"""The local HTTP endpoint: OpenAI's API in front, the workers behind."""
