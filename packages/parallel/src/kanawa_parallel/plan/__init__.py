"""`kanawa plan`: compiles the real step for a target that isn't here, and says what it would cost.

Read in this order: `command` (the verb), `problems` (what can't be), `compilation` (the compiler and its dump),
`read/` (the program's text), `cost/` (what it does and what that takes), `memory/` (what lies where, and when),
`analyse` (all of it in one report), `show/` (what is said).
"""
