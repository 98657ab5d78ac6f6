"""Networks from the papers' experiments; all can be stacked over clients.

Each is an ``nn.Module`` with plain arguments; ``MODELS`` maps the names that specs use to functions
that build one for given data. Any other module without running statistics can be trained as well.
"""

from evenhand.models.cnn import CNN
from evenhand.models.factories import MODELS
from evenhand.models.linear import MLP, Linear
from evenhand.models.lstm import LSTM
from evenhand.models.recurrent import CharLSTM, TextLSTM, WordLSTM
from evenhand.models.resnet import ResNet18

__all__ = ["CNN", "LSTM", "MLP", "MODELS", "CharLSTM", "Linear", "ResNet18", "TextLSTM", "WordLSTM"]
