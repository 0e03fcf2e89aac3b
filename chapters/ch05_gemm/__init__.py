"""Chapter 05: the matrix product, naive, tiled and by cuBLAS."""
