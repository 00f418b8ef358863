"""Where a run's wall time goes: events that survive a kill, and the account that is drawn from them."""
