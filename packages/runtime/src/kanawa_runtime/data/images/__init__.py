"""Pictures: found, decoded, augmented and put in rows."""
