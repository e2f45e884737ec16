"""All that is looked at before anything is submitted: site, keys, flags, programs."""
