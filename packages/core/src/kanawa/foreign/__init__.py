"""What other people's checkpoints call a model's arrays, and in which form: `kn.foreign.*`."""

from kanawa.foreign.forms import Flat as Flat
from kanawa.foreign.forms import Form as Form
from kanawa.foreign.forms import Matrix as Matrix
from kanawa.foreign.forms import Permuted as Permuted
from kanawa.foreign.names import Joined as Joined
from kanawa.foreign.names import Names as Names
from kanawa.foreign.names import Sliced as Sliced
from kanawa.foreign.names import Tensor as Tensor
from kanawa.foreign.table import ForeignNameError as ForeignNameError
from kanawa.foreign.table import ForeignTable as ForeignTable
from kanawa.foreign.table import ForeignTensor as ForeignTensor
from kanawa.foreign.table import ForeignTooManyError as ForeignTooManyError
from kanawa.foreign.table import Part as Part
from kanawa.foreign.table import table_of as table_of
