"""What `kanawa doctor` looks at beyond versions: the file system of runs, the network, the process, other hosts."""
