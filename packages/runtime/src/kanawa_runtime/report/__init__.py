"""One self-contained page about runs: curves, throughput, kernels, versions, differences."""

from kanawa_runtime.report.figures import run_figures as run_figures
from kanawa_runtime.report.page import write_report as write_report
