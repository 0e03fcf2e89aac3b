"""Runs of code that nobody vouches for, in a process of its own: it may crash, hang or lie without harm to this one."""
