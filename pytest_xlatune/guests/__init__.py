"""Subjects that few need, each a folder of its own: launcher, readers, study, command, documents.

They come in as a stranger's distribution does: by the entry points in
`pyproject.toml`, which the package reads by name and loads when they are asked for. The rest of the
package imports none of them and works without this folder; a guest imports no other guest.
"""
