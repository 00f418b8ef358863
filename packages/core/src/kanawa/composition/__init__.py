"""Composition: targets, mesh rules, modifiers, and the one order in which an experiment becomes a program."""

from kanawa.composition.experiment import Composition as Composition
from kanawa.composition.experiment import compose as compose
from kanawa.composition.target import Target as Target
from kanawa.composition.target import parse_target as parse_target
