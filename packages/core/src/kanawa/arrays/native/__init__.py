"""Functions for the processor that the process runs on: LLVM compiles them when a program that calls one is traced.

XLA's CPU backend makes a list of small loops of a program. Where the loops' bounds are data, and memory is what takes
the time, one function written for it is several times quicker: it reads what it needs where it lies, and asks for the
next before it is done with this. Needs llvmlite: `pip install "kanawa[cpu]"`.

`code` writes the instructions, `calls` makes a function of them that a program can call.
"""
