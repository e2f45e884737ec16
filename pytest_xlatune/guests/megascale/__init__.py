"""TPU jobs of several slices, which libtpu's Megascale runtime joins, as a guest.

See `docs/how-to/megascale.md`, and `docs/how-to/studies.md` for the network.

    entry_commands, log_format, network_facts    what entry points name: see `pyproject.toml`
    digests     hang digests: text of a log -> causes and tables; parts: digest, _builder, _lines
    command     `xlatune megascale`; environment: the settings that a host should have
    traffic     captures -> messages between slices; network: latency, pairs, slack; symptoms
    network_command    `xlatune network`

The causes and the advice on each are data: `megascale.toml`. Nothing is imported here.
"""
