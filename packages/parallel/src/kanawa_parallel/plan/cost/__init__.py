"""What a program does and how long that takes: FLOPs, bytes moved, collectives and their links, seconds, money."""
