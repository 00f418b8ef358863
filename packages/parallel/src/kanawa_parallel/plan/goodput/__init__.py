"""How much of a month a run trains, given how often hosts fail and what saving and starting again take."""
