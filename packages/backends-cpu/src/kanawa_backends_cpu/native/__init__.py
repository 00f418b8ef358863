"""Native functions: compiled by LLVM for this process's processor when a program that calls one is traced.

XLA's CPU backend compiles a program to many small loops. Where loop bounds are data, and memory takes most of the time,
one function written for the task is several times faster: it reads data in place and prefetches the next block. Needs
llvmlite: `pip install "kanawa[cpu]"`.

`code` emits instructions, `calls` makes a function of them that a program can call.
"""
