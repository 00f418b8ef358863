"""What lies in a device's memory: the step's arguments by part, and the temporaries at the fullest moment."""
