"""Catalogued rewrites that reach every model."""
