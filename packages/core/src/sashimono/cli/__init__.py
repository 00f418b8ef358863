"""The command line: `sashimono VERB`. Each verb is one file; plugins add verbs of their own.

Plugin verbs use `sashimono.cli.arguments` for the arguments that experiments take and
`sashimono.cli.output` for what they write.
"""
