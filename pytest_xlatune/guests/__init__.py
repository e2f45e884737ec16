"""Guests: subjects that few users need, such as a file format or an export, one folder for each.

A guest is loaded in the same way as another distribution: by the entry points in `pyproject.toml`,
which the package finds by name and loads when they are needed. The rest of the package imports no
guest and works without this folder; a guest imports no other guest.
"""
