"""The serving engine: many requests share compiled steps, pages and prefixes, and none changes another's tokens."""
