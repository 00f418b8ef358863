"""Where runs lie: folders, memory that outlives a process, buckets; and who may write there."""
