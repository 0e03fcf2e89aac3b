"""Chapter 06: causal attention of one request, without a cache."""
