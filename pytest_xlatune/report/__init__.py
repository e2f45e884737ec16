"""Results to one document, and the document to markdown, a terminal and JSON. Pure.

    conclusion + cell + profiles + history -> leaderboard(), tuning() -> Document
    Document -> markdown(), terminal()        the same -> leaderboard_json()
    verdict -> lines.words(), lines.paragraph()             a landed trial -> lines.live_line()

Every number is one of the arguments. Nothing here computes a delta, an interval or a verdict, and
`model.text` turns a figure into text.
"""
