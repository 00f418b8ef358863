"""Options of `kanawa kernels`, one file each."""
