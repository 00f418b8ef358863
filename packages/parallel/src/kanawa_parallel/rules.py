"""Rules that several strategies share: what splits rows and positions is one rule, however many strategies say it."""

from kanawa.arrays.rules import Rules

#: Every axis that holds different rows, outermost first. Axes that a mesh lacks don't count.
BATCH: Rules = (("batch", ("replica", "data", "fsdp", "expert")),)
#: Positions between layers; the second rule of TensorParallel adds its own axis.
LENGTH: Rules = (("length", ("context",)),)
