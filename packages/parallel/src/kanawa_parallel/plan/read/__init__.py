"""The text of a compiled program: instructions, shapes, how often each runs, and which module it comes from."""
