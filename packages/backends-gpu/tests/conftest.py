"""Many small programs are traced."""

import quick_process  # noqa: F401
