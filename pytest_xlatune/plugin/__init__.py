"""The pytest side: options, markers, fixtures, live lines, the summary."""
