"""A plan in seconds: memory and time of a traced program, from its equations, shapes and shardings."""
