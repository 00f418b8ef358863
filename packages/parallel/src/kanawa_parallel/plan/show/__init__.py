"""What is said of a plan: the report, its text and JSON, the mesh's picture, and changes that would make it fit."""
