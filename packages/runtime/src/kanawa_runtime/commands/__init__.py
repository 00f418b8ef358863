"""The verbs that runtime adds to the command line, one file each."""
