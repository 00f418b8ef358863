"""Slurm: a batch script that keeps a gang going inside its allocation, and asks for another one when it must stop."""
