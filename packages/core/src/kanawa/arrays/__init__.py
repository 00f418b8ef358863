"""Arrays by meaning: logical axes, parameter specs, sharding rules, precision, and the execution plan."""

from kanawa.arrays.broadcast import along_last as along_last
from kanawa.arrays.constrain import constrain as constrain
from kanawa.arrays.init import fan_in_normal as fan_in_normal
from kanawa.arrays.init import normal as normal
from kanawa.arrays.init import ones as ones
from kanawa.arrays.init import zeros as zeros
from kanawa.arrays.plan import ExecutionPlan as ExecutionPlan
from kanawa.arrays.plan import KernelPolicy as KernelPolicy
from kanawa.arrays.plan import current_plan as current_plan
from kanawa.arrays.plan import use_plan as use_plan
from kanawa.arrays.precision import Precision as Precision
from kanawa.arrays.spec import ParamSpec as ParamSpec
