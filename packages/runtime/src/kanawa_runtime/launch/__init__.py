"""One job, rendered, submitted and stopped by a launcher for each existing system; never a scheduler of ours."""

from kanawa_runtime.launch.job import Job as Job
from kanawa_runtime.launch.launcher import Launcher as Launcher
from kanawa_runtime.launch.launcher import Status as Status
