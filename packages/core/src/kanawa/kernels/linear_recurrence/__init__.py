"""Linear recurrence with a matrix state: decayed outer products, with or without the delta rule."""

from kanawa.kernels.linear_recurrence.dispatch import linear_recurrence as linear_recurrence
