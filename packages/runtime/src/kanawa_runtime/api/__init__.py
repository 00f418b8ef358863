"""What `kn.train` and `kn.open` do; the verbs `train`, `generate`, `eval` and `report` call the same functions."""
