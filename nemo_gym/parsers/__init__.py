"""A model's output as text -> its parts, whole or as it comes, by one law: every cutting gives the same parts."""

from .output import output_parser as output_parser
from .parser import Parsed as Parsed
from .parser import Parser as Parser
from .parser import ParserStream as ParserStream
from .tokens import Vocabulary as Vocabulary
from .tokens import harmony_vocabulary as harmony_vocabulary
from .tokens import reasoning_tokens as reasoning_tokens
