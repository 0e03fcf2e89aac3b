"""Chapter 08: the first token, and the next ones the slow way."""
