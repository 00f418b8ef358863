"""Token exchange: rows sorted by destination travel between the shards of a mesh axis, and back.

The public call is `kanawa.kernels.token_exchange`, defined in `dispatch`.
"""
