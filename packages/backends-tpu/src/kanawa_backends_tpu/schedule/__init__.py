"""What libtpu's compiler makes of a Pallas kernel: its final bundles read, its loops counted out, its units summed."""
