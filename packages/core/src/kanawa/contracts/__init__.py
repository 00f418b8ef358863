"""The abstract modules and records in which packages meet; import them from their own file or from here."""

from kanawa.config import set_role_fillers
from kanawa.contracts.batch import BATCH_AXES as BATCH_AXES
from kanawa.contracts.batch import ENCODER_DECODER_BATCH_AXES as ENCODER_DECODER_BATCH_AXES
from kanawa.contracts.batch import IMAGE_BATCH_AXES as IMAGE_BATCH_AXES
from kanawa.contracts.batch import Batch as Batch
from kanawa.contracts.batch import EncoderDecoderBatch as EncoderDecoderBatch
from kanawa.contracts.batch import ImageBatch as ImageBatch
from kanawa.contracts.checkpointer import Checkpointer as Checkpointer
from kanawa.contracts.checkpointer import CheckpointError as CheckpointError
from kanawa.contracts.checkpointer import CheckpointSaveError as CheckpointSaveError
from kanawa.contracts.checkpointer import Restored as Restored
from kanawa.contracts.data import DataSource as DataSource
from kanawa.contracts.distributed import Distributed as Distributed
from kanawa.contracts.experiment_template import ExperimentTemplate as ExperimentTemplate
from kanawa.contracts.gradients import GradientStrategy as GradientStrategy
from kanawa.contracts.gradients import LossProgram as LossProgram
from kanawa.contracts.gradients import ModelLoss as ModelLoss
from kanawa.contracts.loader import Loader as Loader
from kanawa.contracts.optimizer import GradientTransformation as GradientTransformation
from kanawa.contracts.optimizer import Optimizer as Optimizer
from kanawa.contracts.optimizer import ParameterRule as ParameterRule
from kanawa.contracts.optimizer import ScheduleFactory as ScheduleFactory
from kanawa.contracts.program import Environment as Environment
from kanawa.contracts.program import Lowered as Lowered
from kanawa.contracts.program import Program as Program
from kanawa.contracts.roles import Block as Block
from kanawa.contracts.roles import Cache as Cache
from kanawa.contracts.roles import CacheState as CacheState
from kanawa.contracts.roles import CacheView as CacheView
from kanawa.contracts.roles import CausalLM as CausalLM
from kanawa.contracts.roles import FeedForward as FeedForward
from kanawa.contracts.roles import MaskedLM as MaskedLM
from kanawa.contracts.roles import Model as Model
from kanawa.contracts.roles import Norm as Norm
from kanawa.contracts.roles import Positions as Positions
from kanawa.contracts.roles import RematPolicy as RematPolicy
from kanawa.contracts.roles import SequenceMixer as SequenceMixer
from kanawa.contracts.roles import Stack as Stack
from kanawa.contracts.roles import TokenDispatcher as TokenDispatcher
from kanawa.contracts.sequences import Sequences as Sequences
from kanawa.contracts.sequences import token_of_each_row as token_of_each_row
from kanawa.contracts.services import Run as Run
from kanawa.contracts.services import Service as Service
from kanawa.contracts.storage import Lease as Lease
from kanawa.contracts.storage import LeaseHeldError as LeaseHeldError
from kanawa.contracts.storage import LeaseLostError as LeaseLostError
from kanawa.contracts.storage import ObjectMissingError as ObjectMissingError
from kanawa.contracts.storage import Storage as Storage
from kanawa.contracts.storage import StorageConflictError as StorageConflictError
from kanawa.contracts.storage import StorageError as StorageError
from kanawa.contracts.storage import StorageRefusedError as StorageRefusedError
from kanawa.contracts.storage import is_address as is_address
from kanawa.contracts.storage import knows_address as knows_address
from kanawa.contracts.storage import open_storage as open_storage
from kanawa.contracts.stored_adapter import AdapterStore as AdapterStore
from kanawa.contracts.stored_adapter import StoredAdapter as StoredAdapter
from kanawa.contracts.stored_model import ForeignConfigError as ForeignConfigError
from kanawa.contracts.stored_model import ForeignFamily as ForeignFamily
from kanawa.contracts.stored_model import ModelStore as ModelStore
from kanawa.contracts.stored_model import StoredModel as StoredModel
from kanawa.contracts.strategy import MeshBuilder as MeshBuilder
from kanawa.contracts.strategy import Strategy as Strategy
from kanawa.contracts.tokenizer import Tokenizer as Tokenizer
from kanawa.contracts.weights import ADAPTERS as ADAPTERS
from kanawa.contracts.weights import Adapter as Adapter
from kanawa.contracts.weights import AdapterBank as AdapterBank
from kanawa.contracts.weights import Weighted as Weighted
from kanawa.contracts.weights import WeightForm as WeightForm
from kanawa.contracts.workload import BatchShape as BatchShape
from kanawa.contracts.workload import ExecutionConfig as ExecutionConfig
from kanawa.contracts.workload import PrecisionConfig as PrecisionConfig
from kanawa.contracts.workload import Workload as Workload
from kanawa.plugins.fillers import fillers

# Whoever builds a role has imported it from here; config, which raises the error, can't import the catalog.
set_role_fillers(fillers)
