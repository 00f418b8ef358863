"""Transcribing speech: an engine of batches, windows of long sound, and what transcripts are written as."""
