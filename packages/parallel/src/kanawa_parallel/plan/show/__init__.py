"""A plan for people: its text, and the picture of its mesh."""
