"""What a plan reports of one target: the record, how it is put together, and how its numbers are written."""
