"""`verifiers`: an experiment learns from an environment of the `verifiers` package, unmodified."""

import functools

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.records.record import Records
from kanawa_runtime.rollouts.grpo import GRPO
from kanawa_runtime.rollouts.verifiers.environment import VerifiersInteraction, VerifiersTasks, environment_reward


class VerifiersSource(ChatSource):
    """Rows of an environment's prompts: `--data verifiers:taskset=NAME`."""

    class Config(ChatSource.Config):
        records: Records.Config = VerifiersTasks.Config(taskset="")
        #: As of `VerifiersTasks`.
        taskset: str = kn.REQUIRED
        arguments: str = ""

    @functools.cached_property
    def records(self) -> Records:
        """The tasks, not yet loaded."""
        cfg = self.config
        tasks: Records = VerifiersTasks.Config(taskset=cfg.taskset, arguments=cfg.arguments).build()
        return tasks


class VerifiersEnvironment(kn.Modifier):
    """Interaction and reward from the environment of the data: `--data verifiers:taskset=NAME --modify verifiers`.

    The policy's turns, at most `max_turns`, are the requests of the environment's agent; all else is the environment's
    own. The other fields are those of `grpo`.
    """

    class Config(kn.Modifier.Config):
        max_turns: kn.Size = 8
        group_size: kn.Size = 8
        new_tokens: kn.Size = 512
        updates: kn.Size = 1
        kl: kn.NonNegative = 0.0
        dr: bool = False

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the environment's episodes and its reward; raises ConfigError where the data have none."""
        own, data = self.config, vars(cfg).get("data")
        if not isinstance(data, VerifiersSource.Config):
            message = "verifiers: the data are no environment's tasks; name one: --data verifiers:taskset=NAME"
            raise ConfigError(message)
        plays = VerifiersInteraction.Config(
            taskset=data.taskset, arguments=data.arguments, max_turns=own.max_turns
        )  # fmt: skip
        grpo = GRPO.Config(
            reward=environment_reward, interaction=plays, group_size=own.group_size, new_tokens=own.new_tokens,
            updates=own.updates, kl=own.kl, dr=own.dr,
        )  # fmt: skip
        changed: kn.Config = grpo.build()(cfg)
        return changed
