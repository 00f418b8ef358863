"""Arrays by meaning: logical axes, parameter specs, sharding rules, precision, and the execution plan."""

from sashimono.arrays.broadcast import along_last as along_last
from sashimono.arrays.constrain import constrain as constrain
from sashimono.arrays.init import fan_in_normal as fan_in_normal
from sashimono.arrays.init import normal as normal
from sashimono.arrays.init import ones as ones
from sashimono.arrays.init import zeros as zeros
from sashimono.arrays.plan import ExecutionPlan as ExecutionPlan
from sashimono.arrays.plan import KernelPolicy as KernelPolicy
from sashimono.arrays.plan import current_plan as current_plan
from sashimono.arrays.plan import use_plan as use_plan
from sashimono.arrays.precision import Precision as Precision
from sashimono.arrays.spec import ParamSpec as ParamSpec
