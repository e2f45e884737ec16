"""The flags and variables that people tune: data files and their readers. Pure.

entries      every setting: values to try, axis, reason, needs and source; and which release of
             jaxlib accepts which XLA flag, and its default
candidates   the settings of an axis as profiles, without those that do nothing on the target
rules        faults of a profile that can be found before a trial, in a `context`
effect       what the target's own XLA makes of profiles
"""
