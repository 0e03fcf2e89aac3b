"""Measuring: the engine, its operations one by one, and the engine beside its peers. Above `llm`, which it runs."""
