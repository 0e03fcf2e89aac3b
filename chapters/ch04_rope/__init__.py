"""Chapter 04: RoPE, where position becomes rotation."""
