"""Chapter 01: any tensor of a safetensors file, read by hand."""
