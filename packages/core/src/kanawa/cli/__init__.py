"""The command line: `kanawa VERB`. Each verb is one file; plugins add verbs of their own.

Plugin verbs use `kanawa.cli.arguments` for the arguments that experiments take and
`kanawa.cli.output` for what they write.
"""
