"""How much of a month a run trains, by how often hosts fail and how long saving and restarting take."""
