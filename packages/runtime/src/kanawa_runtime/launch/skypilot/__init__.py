"""SkyPilot: managed jobs on whichever cloud has the machines."""
