"""Pipeline parallelism: schedules, the stack that runs them, and gradients that start before all forwards end."""
