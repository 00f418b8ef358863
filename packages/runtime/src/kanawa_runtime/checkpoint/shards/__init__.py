"""Arrays as pieces: each process writes those it holds, and any other arrangement of devices reads them back."""
