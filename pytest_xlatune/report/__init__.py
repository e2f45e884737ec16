"""Make documents of results, and texts of documents: markdown, terminal and JSON. Pure.

    a MeasuredCell -> leaderboard(), gate() ... -> Document    a MeasuredCell -> leaderboard_json()
    several MeasuredCell -> tuning() -> Document               Document -> markdown(), terminal()
    a verdict -> lines.words(), lines.paragraph()              an ended trial -> lines.live_line()

This package computes no verdict. The only figure that it computes is the change of a baseline
between two sweeps of a cell. `model.text` turns figures into text.
"""
