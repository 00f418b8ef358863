"""One target's plan: by its compiler, or estimated where there is none; here, or in a process of its own."""
