"""`kanawa plan`: compiles the real step for a target that isn't here, and reports what it costs.

Folders, each importing only those before it: `read` (the text of a compiled program), `memory`, `cost` (FLOPs, bytes,
collectives, seconds), `programs` (what is planned), `report` (the record), `quick` (estimates from a traced program),
`compiled` (the compiler and what is counted in its program), `targets` (the plan of one target), `show`, `search`,
`goodput`. `command` is the verb and `api` is `kn.plan`.
"""
