"""Which rows of a batch spoil a step: looked at on the host, then tried one by one with the newest sound parameters."""

import logging
import math
from typing import Any

import jax
import numpy as np
from kanawa.errors import INTERRUPTIONS

from kanawa_runtime.train.attempt import Attempt
from kanawa_runtime.train.batches import global_batch, local_rows
from kanawa_runtime.train.evaluate import Evaluator

logger = logging.getLogger(__name__)

_MOST_NAMED = 4
Rows = dict[int, dict[str, np.ndarray]]


def culprits(attempt: Attempt, evaluator: Evaluator, number: int, first_row: int) -> str:
    """Returns what is wrong with rows of batch `number`, from 0; "" where nothing is, or it can't be told.

    Never raises: another error is on its way out.
    """
    try:
        looking = attempt.screen.phase(f"looking for the rows that spoil batch {number + 1}")
        with looking, attempt.sections.within("restore"):
            rows = {
                row: attempt.trainer.source.row(row) for row in range(first_row, first_row + attempt.config.batch_size)
            }
            found = _seen(attempt, rows) or _tried(attempt, evaluator, rows)
    except INTERRUPTIONS:
        raise
    except BaseException:
        logger.debug("rows of batch %d can't be looked at", number, exc_info=True)
        return ""
    if not found:
        return ""
    attempt.journal.write("rows_at_fault", batch=number + 1, rows=sorted(found), reasons=found)
    named = "; ".join(f"row {row} {what}" for row, what in list(found.items())[:_MOST_NAMED])
    more = f"; and {len(found) - _MOST_NAMED} more rows" if len(found) > _MOST_NAMED else ""
    return f"In batch {number + 1} {named}{more}"


def _seen(attempt: Attempt, rows: Rows) -> dict[int, str]:
    """Returns rows with numbers that nothing can be computed from, and what is wrong with each."""
    vocabulary = getattr(attempt.config.model, "vocab_size", None)
    found: dict[int, str] = {}
    for row, arrays in rows.items():
        for name, array in arrays.items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                found[row] = f"has {name} that aren't finite"
            elif name.endswith("_ids") and vocabulary is not None and "segment" not in name:
                outside = array[(array < 0) | (array >= vocabulary)]
                if outside.size:
                    found[row] = f"has the token {outside[0]} among its {name}; the model's are 0 to {vocabulary - 1}"
    return found


def _tried(attempt: Attempt, evaluator: Evaluator, rows: Rows) -> dict[int, str]:
    """Returns rows whose loss isn't finite with the parameters of the newest checkpoint, each taken by itself."""
    step = attempt.checkpoints.latest()
    if step is None or jax.process_count() > 1 or attempt.config.rollouts is not None:
        return {}
    abstract = attempt.trainer.abstract_state(attempt.prepared.environment)
    asked = {"params": abstract.params, "state": abstract.state}
    restored = attempt.checkpoints.restore(asked, step=step)
    if restored is None:
        return {}

    def bad(numbers: list[int]) -> list[int]:
        # Repeated until they fill a batch: what one row spoils, weights of 0 elsewhere would not keep apart.
        if math.isfinite(evaluator.loss_of(restored.items, _repeated(rows, numbers, attempt, evaluator))):
            return []
        if len(numbers) == 1:
            return numbers
        half = len(numbers) // 2
        return bad(numbers[:half]) + bad(numbers[half:])

    return {row: f"alone has a loss that isn't finite, with the parameters of step {step}" for row in bad(list(rows))}


def _repeated(rows: Rows, numbers: list[int], attempt: Attempt, evaluator: Evaluator) -> Any:
    abstract = evaluator.program.abstract_args[2]
    chosen = [rows[numbers[place % len(numbers)]] for place in range(attempt.config.batch_size)]
    present = {name: spec is not None for name, spec in abstract._asdict().items()}
    stacked = {name: np.stack([row[name] for row in chosen]) if held else None for name, held in present.items()}
    return global_batch(type(abstract)(**stacked), abstract, local_rows(abstract))
