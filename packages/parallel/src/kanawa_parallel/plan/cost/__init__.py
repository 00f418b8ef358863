"""What a program does and how long it takes: FLOPs, bytes moved, collectives and their links, seconds."""
