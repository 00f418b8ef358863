"""What installed kernels support, as tables."""
