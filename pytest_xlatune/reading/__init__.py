"""Logs that anybody ran: read, scored and compared without a ledger."""
