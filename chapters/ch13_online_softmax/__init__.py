"""Chapter 13: attention in one pass over the keys, without a score in global memory."""
