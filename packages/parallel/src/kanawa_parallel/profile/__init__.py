"""`kanawa profile RUN`: where the steps of a recorded trace went, by module and kind, beside the plan."""
