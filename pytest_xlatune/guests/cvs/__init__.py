"""Configurations of AMD's cluster validation suite (CVS), as a guest: see `docs/how-to/cvs.md`.

    entry_command, entry_study, launcher_file    what entry points name: see `pyproject.toml`
    options     the options of pytest; pytest loads nothing more than this in every run
    items       the tests of a configuration: a module for each cell, a test for each metric
    source      reads a file into objects, and typed values from them
    keys        what becomes of each key of a file, by the tables in `keys.toml`
    reading     turns a configuration of either generation into a `values.CvsFile`
    calibrated  computes measured thresholds
    launcher    starts the trainer of such a file
    thresholds, document    the study and its report
    command     `xlatune cvs`

Nothing is imported here: pytest loads only `options`, and the list of commands `entry_command`.
"""
