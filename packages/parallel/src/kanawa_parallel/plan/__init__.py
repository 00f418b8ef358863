"""`kanawa plan`: compiles the real step for a target that isn't here, and says what it would cost.

Read in this order: `command` (the verb), `problems` (what can't be), `compilation` (the compiler and its dump), `hlo`
and `loops` (the program's text), `flops`, `traffic`, `collectives`, `liveness` (what is counted in it), `timing` (what
that takes), `report` (what is said).
"""
