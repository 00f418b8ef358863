"""Sound with transcripts, as rows for models of speech."""
