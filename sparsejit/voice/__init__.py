"""Voices: specs of networks of the WaveRNN family (`spec`), their training and their speech.

`sparsejit.WaveRNN.from_checkpoint` compiles a `VoiceSpec` and its tensors.
"""

from sparsejit.ir.spec import Activation
from sparsejit.voice.spec import voice_spec
from sparsejit.voice.spec.forced_network import ForcedNetwork, choose_dtypes
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import *  # noqa: F403, all that describes a network

__all__ = ["Activation", "ForcedNetwork", "TrainedNetwork", "choose_dtypes"]
__all__ += voice_spec.__all__
