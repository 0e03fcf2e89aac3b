"""Chapter 03: RMSNorm, where many threads make one number."""
