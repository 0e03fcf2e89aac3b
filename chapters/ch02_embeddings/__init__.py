"""Chapter 02: from text to vectors."""
