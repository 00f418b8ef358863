"""`kanawa data`: what there is to do with data before a run."""
