"""Token exchange: rows sorted by destination travel between the shards of a mesh axis, and back."""

from kanawa.kernels.token_exchange.dispatch import token_exchange as token_exchange
