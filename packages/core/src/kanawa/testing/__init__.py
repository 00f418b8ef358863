"""The conformance kit: one base class a contract.

Import from the files themselves; importing this package costs nothing.
"""
