"""Configurations of AMD's cluster validation suite (CVS), as a guest: see `docs/how-to/cvs.md`.

    entry_command, entry_study, launcher_file    what entry points name: see `pyproject.toml`
    options     pytest's options; pytest loads this in every run, and no more
    items       tests of a configuration: a module for each cell, a test for each metric
    source      the text of a file as objects and single values; keys (`keys.toml`): the accounting
    reading     a configuration of either generation -> `values.CvsFile`; files: from disk
    launcher    how a trial of such a file is started
    written     files written anew: with a recipe, with measured thresholds
    thresholds, document    the study and its report
    command     `xlatune cvs`

Nothing is imported here: pytest loads `options` alone, the list of all commands `entry_command`.
"""
