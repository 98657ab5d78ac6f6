"""Networks from the papers' experiments; all can be stacked over clients.

Each is an ``nn.Module`` with plain arguments; ``MODELS`` maps the names that specs use to functions
that build one for given data. Any other module can be trained as well; ``without_batchnorm``
replaces its BatchNorm layers.
"""

from evenhand.models.cnn import CNN
from evenhand.models.factories import MODELS
from evenhand.models.linear import MLP, Linear
from evenhand.models.lstm import LSTM
from evenhand.models.recurrent import CharLSTM, TextLSTM, WordLSTM
from evenhand.models.resnet import ResNet18
from evenhand.models.without_batchnorm import without_batchnorm

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "MODELS",
    "CharLSTM",
    "Linear",
    "ResNet18",
    "TextLSTM",
    "WordLSTM",
    "without_batchnorm",
]
