"""Chapter 14: attention that reads the cache's blocks where they lie, a long context by several CUDA blocks."""
