"""Modules of other libraries in slots of ours."""
