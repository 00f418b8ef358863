"""How many statements a feature costs as models and variants multiply; docs/loc-complexity.md explains the protocol."""
