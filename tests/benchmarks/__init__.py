"""Benchmarks: our saver and its peers side by side, in one process. A baseline, never a gate on time."""
