"""attention.tpu.flash: our own attention for TPUs, in Pallas."""
