"""Run a study into the ledger of its cell: attempts, turns, limits, and what each job is worth."""
