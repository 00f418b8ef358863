"""The conformance kit: one base class a contract, and a tiny model made of core code alone.

Import from the files themselves; importing this package costs nothing.
"""
