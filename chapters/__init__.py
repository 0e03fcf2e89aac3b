"""The course: one folder a chapter, each building on the ones before it."""
