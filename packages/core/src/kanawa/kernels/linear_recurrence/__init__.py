"""Linear recurrence with a matrix state: decayed outer products, with or without the delta rule.

The public call is `kanawa.kernels.linear_recurrence`, defined in `dispatch`.
"""
