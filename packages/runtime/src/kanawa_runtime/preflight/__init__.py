"""What `kanawa doctor` tries on this machine: the file system of runs, the network, the process, other hosts."""
