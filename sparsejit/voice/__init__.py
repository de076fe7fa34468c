"""Voices: what a network of the WaveRNN family is (`spec`), how one is trained and how it speaks.

A `VoiceSpec` and its tensors are what `sparsejit.WaveRNN.from_checkpoint` compiles.
"""

from sparsejit.ir.spec import Activation
from sparsejit.voice.spec.forced_network import ForcedNetwork
from sparsejit.voice.spec.short_dtypes import choose_dtypes
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import (
    BinaryTree,
    Categorical,
    Companding,
    DenseSpec,
    DualDenseSpec,
    DualSoftmax,
    Gaussian,
    GruSpec,
    HeldConditioning,
    InterpolatedConditioning,
    LastClass,
    LastHalves,
    LastSample,
    LastSampleRow,
    LinearPrediction,
    MixtureOfLogistics,
    PredictionRow,
    VoiceSpec,
)

__all__ = [
    "Activation",
    "BinaryTree",
    "Categorical",
    "Companding",
    "DenseSpec",
    "DualDenseSpec",
    "DualSoftmax",
    "ForcedNetwork",
    "Gaussian",
    "GruSpec",
    "HeldConditioning",
    "InterpolatedConditioning",
    "LastClass",
    "LastHalves",
    "LastSample",
    "LastSampleRow",
    "LinearPrediction",
    "MixtureOfLogistics",
    "PredictionRow",
    "TrainedNetwork",
    "VoiceSpec",
    "choose_dtypes",
]
