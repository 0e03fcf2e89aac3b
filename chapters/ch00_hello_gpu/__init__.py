"""Chapter 00: a kernel is one thread's program, and the grid decides which thread I am."""
