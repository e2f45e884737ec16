"""What a sweep would run, found out without running anything."""
