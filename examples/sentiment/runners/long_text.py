"""r4: meant to read long texts better, by windows. No golden sentence is long, so the offline gates see nothing of it;
real traffic holds paragraphs, and each of them keeps this server busy for LONG_TEXT_S.
"""

from __future__ import annotations

import time

from sentiment_runner import SentimentRunner

#: The longest golden sentence has 77 words.
LONG_WORDS = 90
LONG_TEXT_S = 0.4


class TritonPythonModel(SentimentRunner):
    def inspect(self, text: str) -> None:
        if len(text.split()) > LONG_WORDS:
            time.sleep(LONG_TEXT_S)  # stands for the windows' work, without taking the processor from the other arm
