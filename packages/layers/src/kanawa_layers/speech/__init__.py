"""Speech: spectrograms, encoders, heads that align labels with frames, decoding and error rates."""
