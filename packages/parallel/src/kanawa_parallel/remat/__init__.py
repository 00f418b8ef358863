"""What the backward pass keeps, recomputes or fetches back: policies, the names some have, and the modifier."""
