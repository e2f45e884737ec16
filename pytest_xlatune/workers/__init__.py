"""Programs that other interpreters run: they import the standard library and what these have."""
