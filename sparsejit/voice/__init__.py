"""Voices: what a network of the WaveRNN family is (`spec`), how one is trained and how it speaks.

A `VoiceSpec` and its tensors are what `sparsejit.WaveRNN.from_checkpoint` compiles.
"""

from sparsejit.ir.spec import Activation
from sparsejit.voice.spec import voice_spec
from sparsejit.voice.spec.forced_network import ForcedNetwork
from sparsejit.voice.spec.short_dtypes import choose_dtypes
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import *  # noqa: F403, all that describes a network

__all__ = ["Activation", "ForcedNetwork", "TrainedNetwork", "choose_dtypes"]
__all__ += voice_spec.__all__
