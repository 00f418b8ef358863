"""The server: OpenAI's and vLLM's HTTP interface to an engine."""
