"""Configurations of AMD's cluster validation suite (CVS), as a guest: see `docs/how-to/cvs.md`.

    entry_command, entry_study, launcher_file    what entry points name: see `pyproject.toml`
    options     the options of pytest; pytest loads nothing more than this in every run
    items       the tests of a configuration: a module for each cell, a test for each metric
    source      the text of a file as objects, and its single values; keys (`keys.toml`): what
    becomes of each
    reading     a configuration of either generation -> `values.CvsFile`; files: read from disk
    launcher    how a trial of such a file is started
    written     files that are written anew, with a recipe or with measured thresholds
    thresholds, document    the study and its report
    command     `xlatune cvs`

Nothing is imported here: pytest loads only `options`, and the list of commands `entry_command`.
"""
