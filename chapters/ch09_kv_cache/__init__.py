"""Chapter 09: the KV cache, so that each token is computed once."""
