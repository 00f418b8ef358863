"""Plans estimated from the traced program, in seconds and without a compiler."""
