"""Attention over a split sequence: layouts of the parts, ways for keys to travel, and the loop over both."""
