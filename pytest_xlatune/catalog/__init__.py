"""The flags and variables that people tune: data files and their readers. Pure.

entries      every setting: what to try, on which axis, why, what it needs, who says so; and
which jaxlib release accepts which XLA flag, and its default
candidates   the settings of an axis as profiles, without those that do nothing here
rules        faults of a profile before anything runs, in a `context`
effect       what the target's own XLA makes of profiles, when asked
"""
