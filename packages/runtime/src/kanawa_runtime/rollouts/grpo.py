"""`grpo`: an experiment learns from a reward of what its model writes, instead of targets."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.data.chats.fine_tuning import chat_rows
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.records.of_data import records_of
from kanawa_runtime.rollouts.advantages import centred, group_relative
from kanawa_runtime.rollouts.interaction import Interaction
from kanawa_runtime.rollouts.rollouts import Rollouts
from kanawa_runtime.storage.place import address_of


class GRPO(kn.Modifier):
    """Sets a trainer's rollouts and its model's clipped objective: `--modify grpo:reward=exact-match`.

    Several: `grpo:rewards=[exact-match,my_module:is_polite],weights=[1,0.2]`; `reward` is short for a list of one.
    `reward_model=RUN` adds what a model says that `--modify reward-model` trained; its weight is the last one.
    DeepSeekMath, arXiv:2402.03300, section 4; with `dr` neither lengths nor deviations divide (Dr. GRPO,
    arXiv:2503.20783). `kl` is the coefficient of the divergence from the first parameters; 0 needs none of them.
    Records, `--data questions.jsonl`, are conversations: what comes before the last answer is the prompt, one a row,
    and rewards read the other columns. Of other data the prompt is what comes before a row's first weighted target, or
    its first `prompt_tokens` tokens, which text needs. With `exact` the log-probabilities of the
    rollouts are the training step's, bit for bit. All else is under `rollouts` and `model.loss`.
    """

    class Config(kn.Modifier.Config):
        reward: Annotated[Callable[..., Any] | None, kn.Named("rewards")] = None
        rewards: Annotated[tuple[Callable[..., Any], ...], kn.Named("rewards")] = ()
        reward_model: str | None = None
        weights: tuple[float, ...] | None = None
        group_size: kn.Size = 8
        new_tokens: kn.Size = 64
        prompt_tokens: kn.Size | None = None
        updates: kn.Size = 1
        kl: kn.NonNegative = 0.0
        dr: bool = False
        interaction: Annotated[Interaction.Config | None, kn.Named("interactions")] = None
        exact: bool = False

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rollouts and the loss; raises ConfigError where it has no place for rollouts."""
        own = self.config
        if "rollouts" not in cfg.fields():
            message = (
                f"{type(cfg).__qualname__} has no rollouts slot: only what `kanawa train` runs learns from rewards"
            )
            raise ConfigError(message)
        named = own.rewards if own.reward is None else (own.reward,)
        if (own.reward is not None and own.rewards) or not (named or own.reward_model):
            message = (
                "grpo: expected reward=NAME, rewards=[NAME,NAME] for several, or reward_model=RUN; `kanawa list "
                "rewards` shows those here, and module:function is any other"
            )
            raise ConfigError(message)
        rollouts = Rollouts(
            rewards=named, reward_model=_absolute(own.reward_model), weights=own.weights, group_size=own.group_size,
            new_tokens=own.new_tokens, updates=own.updates, prompt_tokens=own.prompt_tokens,
            interaction=own.interaction, exact=own.exact, reference=own.kl > 0,
            advantages=centred if own.dr else group_relative,
        )  # fmt: skip
        if own.prompt_tokens is None:
            ask(cfg)
        # By its name in the catalog: this package never imports the one that brings losses.
        loss = kn.component("modifiers", "policy-loss", asker="kanawa-runtime").Config(kl=own.kl, dr=own.dr)
        changed: kn.Config = loss.build()(cfg.set(rollouts=rollouts))
        return changed


def _absolute(path: str | None) -> str | None:
    """Returns a path from which any working folder finds the same place."""
    return path if path is None or address_of(path) else str(Path(path).resolve())


def ask(cfg: Any) -> None:
    """Turns records into questions, one a row; other data stay."""
    if isinstance(cfg.data, Mixture.Config):
        asked = {name: _questions(source) for name, source in cfg.data.sources.items()}
        cfg.data.set(sources=asked)
    else:
        cfg.set(data=_questions(cfg.data))


def _questions(data: Any) -> Any:
    if not isinstance(data, ChatSource.Config) and records_of(data) is None:
        return data
    rows = chat_rows(data)
    rows.set_prompts()
    return rows
