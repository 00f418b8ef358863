"""The programs that are planned: compositions of an experiment with targets, and the step that decodes."""
