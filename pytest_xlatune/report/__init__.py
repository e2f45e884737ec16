"""Results to one document, and the document to markdown, a terminal and JSON. Pure.

    MeasuredCell -> leaderboard(), gate() ... -> Document   the same -> leaderboard_json()
    MeasuredCell... -> tuning() -> Document                 Document -> markdown(), terminal()
    verdict -> lines.words(), lines.paragraph()             a landed trial -> lines.live_line()

Every number is one of the arguments, or the change of a baseline between two sweeps of a cell.
Nothing here computes a verdict, and `model.text` turns a figure into text.
"""
