"""TPU jobs of several slices, which libtpu's Megascale runtime joins, as a guest.

See `docs/how-to/megascale.md`, and `docs/how-to/studies.md` for the network.

    entry_commands, log_format    the entry points, see `pyproject.toml`
    digests     finds the hang digests in a log; its parts are digest and _builder
    command     `xlatune megascale`
    environment the settings that a host should have
    traffic     reads the messages between slices from captures
    network     computes latency, pairs and slack
    network_command    `xlatune network`, which judges the symptoms

`megascale.toml` has the causes of hangs, with advice on each. Nothing is imported here.
"""
