"""A gang of processes on this machine, started again as a whole when one of them is lost."""
