"""Make documents of results, and texts of documents: markdown, terminal and JSON. Pure.

    MeasuredCell -> leaderboard(), gate() ... -> Document   the same -> leaderboard_json()
    MeasuredCell... -> tuning() -> Document                 Document -> markdown(), terminal()
    verdict -> lines.words(), lines.paragraph()             a landed trial -> lines.live_line()

Every number is an argument, or the change of a baseline between two sweeps of a cell. Nothing here
computes a verdict, and `model.text` turns figures into text.
"""
