"""Chapter 07: a whole layer."""
