"""r4: meant to read longer texts than its envelope declares, by windows of 128 tokens. Gates ask for nothing beyond what
is declared, so they see nothing of it; real traffic holds paragraphs, and each of them keeps this server busy for
LONG_TEXT_S.
"""

from __future__ import annotations

import time

from sentiment_runner import SentimentRunner

#: More words than this are more than one window, as each is a token or more. The longest golden sentence has 77.
LONG_WORDS = 128
LONG_TEXT_S = 0.4


class TritonPythonModel(SentimentRunner):
    def inspect(self, text: str) -> None:
        if len(text.split()) > LONG_WORDS:
            time.sleep(LONG_TEXT_S)  # stands for the windows' work, without taking the processor from the other arm
