"""Places where steps lie and count: folders, and prefixes of an object store."""
