"""What a run remembers of its kernels: by problem, for one platform, through a checkpoint's JSON."""

import dataclasses
import json

from kanawa.contracts import Environment
from kanawa.kernels import KernelChoice
from kanawa_runtime.train.program_record import KERNELS, KernelRecord

TRAIN = KernelChoice("attention", "train 8x256", "attention.cpu.blockwise")
EVALUATION = KernelChoice("attention", "eval 8x256", "attention.any.reference")


def through_a_checkpoint(record, platform):
    return KernelRecord.of({KERNELS: json.loads(json.dumps(record.as_json()))}, platform)


def test_choices_are_kept_by_problem_and_given_to_the_next_attempt():
    record = KernelRecord("cpu")
    assert record.add([TRAIN]) == [TRAIN]
    assert record.add([TRAIN, EVALUATION]) == [EVALUATION]
    where = through_a_checkpoint(record, "cpu").applied(Environment())
    assert where.plan.kernels.recorded == (
        ("attention", "train 8x256", "attention.cpu.blockwise", ()),
        ("attention", "eval 8x256", "attention.any.reference", ()),
    )


def test_a_tuning_is_kept_with_its_kernel():
    tuned = dataclasses.replace(TRAIN, tuning=(("block", 64),))
    record = KernelRecord("cpu")
    record.add([TRAIN])
    assert record.add([tuned]) == [tuned]
    where = through_a_checkpoint(record, "cpu").applied(Environment())
    assert where.plan.kernels.recorded == (("attention", "train 8x256", "attention.cpu.blockwise", (("block", 64),)),)


def test_a_record_without_tunings_is_read():
    old = {KERNELS: {"platform": "cpu", "chosen": [["attention", "train 8x256", "attention.cpu.blockwise"]]}}
    where = KernelRecord.of(old, "cpu").applied(Environment())
    assert where.plan.kernels.recorded == (("attention", "train 8x256", "attention.cpu.blockwise", ()),)


def test_another_platform_chooses_anew():
    record = KernelRecord("cpu")
    record.add([TRAIN])
    assert through_a_checkpoint(record, "tpu").applied(Environment()) == Environment()
    assert KernelRecord.of({}, "cpu").applied(Environment()) == Environment()


def test_a_changed_choice_replaces_the_old_one():
    record = KernelRecord("cpu")
    record.add([TRAIN])
    other = KernelChoice(TRAIN.operation, TRAIN.problem, "attention.cpu.other")
    assert record.add([other]) == [other]
    assert record.as_json()["chosen"] == [["attention", "train 8x256", "attention.cpu.other", {}]]
