"""Published models as functions that return configs."""
