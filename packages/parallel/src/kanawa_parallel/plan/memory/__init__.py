"""What a device's memory holds: the step's arguments, and the temporaries at the fullest moment."""
