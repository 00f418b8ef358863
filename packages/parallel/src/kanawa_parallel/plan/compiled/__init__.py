"""Plans by the target's own compiler: the compiled program, and what is counted in its text."""
