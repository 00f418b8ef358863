"""Where a run's wall time goes: a ledger that survives a kill, and the account that is drawn from it."""
