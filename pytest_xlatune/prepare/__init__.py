"""The checks before anything is submitted: of the site, keys, flags and programs."""
