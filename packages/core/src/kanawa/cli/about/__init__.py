"""What the catalog's components are, for the people who choose among them: one line, fields, size."""
