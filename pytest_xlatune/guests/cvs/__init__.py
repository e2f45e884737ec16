"""Configurations of AMD's cluster validation suite (CVS), as a guest: see `docs/how-to/cvs.md`.

    entry_command, entry_study, launcher_file    what entry points name: see `pyproject.toml`
    options     pytest's options; pytest loads this in every run, and no more
    items       tests of a configuration: a module for each cell, a test for each metric
    reading     the text of a file -> cells, thresholds, open items; _keys, _values, _draft (what
                both generations share, and generation 1), generation4
    files       files from disk, and the sweep that a cell becomes
    launcher    how a trial of such a file is started
    recipe, written                 files written anew
    thresholds, document    the study and what it keeps, its report
    logs                            what the logs of the same jobs tell beside their score
    command     `xlatune cvs`

Nothing is imported here: pytest loads `options` alone, the list of all commands `entry_command`.
"""
