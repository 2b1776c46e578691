"""Detections beside those that were expected: which boxes match, and how far one image's are from the other's.

A detection is a row of x1, y1, x2, y2, then its score and its class where there are such; without a score it is sure, and
without classes all are of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
#: From this overlap on two boxes are of the same thing. Source: the PASCAL VOC challenge; mAP@.5.
LEAST_IOU = 0.5
#: Detections that are less sure are not looked at: detectors fill their outputs up with them.
LEAST_SCORE = 0.5
_COLUMNS = (4, 5, 6)


def detections(outputs: Sequence[Numbers]) -> Numbers:
    """Rows of x1, y1, x2, y2, score, class from one image's outputs, side by side, of those that are sure enough.

    Raises ValueError where they do not make 4 to 6 columns.
    """
    counts = [len(np.atleast_1d(one)) for one in outputs]
    if len(set(counts)) != 1:
        raise ValueError(f"the outputs have {', '.join(map(str, counts))} rows, and each is a box")
    if not counts[0]:
        return np.zeros((0, 6))
    rows: Numbers = np.concatenate([one.reshape(counts[0], -1) for one in outputs], axis=1)
    if rows.shape[1] not in _COLUMNS:
        raise ValueError(f"a box has {rows.shape[1]} numbers; x1, y1, x2, y2, score, class are asked")
    if rows.shape[1] == 4:
        rows = np.column_stack([rows, np.ones(len(rows))])
    if rows.shape[1] == 5:
        rows = np.column_stack([rows, np.zeros(len(rows))])
    sure: Numbers = rows[rows[:, 4] >= LEAST_SCORE]
    return sure


def overlaps(a: Numbers, b: Numbers) -> Numbers:
    """Intersection over union of each box of `a` with each of `b`, 0 to 1."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:4], b[None, :, 2:4])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    union = _areas(a)[:, None] + _areas(b)[None, :] - shared
    parts: Numbers = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return parts


def boxes_distance(expected: Sequence[Numbers], got: Sequence[Numbers]) -> float:
    """1 less the panoptic quality of an image's boxes, 0 to 1: twice the overlap of those that match, over how many both have.

    The surest box chooses first, the best of its class that is left and overlaps by half or more. So a box that is lost, one
    that is made up, a wrong class and a wrong place all count. 0 where both have none; inf for numbers that are no boxes.
    Source: Kirillov et al., Panoptic Segmentation, CVPR 2019.
    """
    try:
        wanted, found = detections(expected), detections(got)
    except ValueError:
        return math.inf
    if not len(wanted) + len(found):
        return 0.0
    shared = overlaps(found, wanted)
    shared[found[:, 5][:, None] != wanted[:, 5][None, :]] = 0.0
    total = 0.0
    for at in np.argsort(-found[:, 4], kind="stable"):
        best = int(shared[at].argmax()) if len(wanted) else 0
        if len(wanted) and shared[at, best] >= LEAST_IOU:
            total += float(shared[at, best])
            shared[:, best] = 0.0
    return 1.0 - 2 * total / (len(wanted) + len(found))


def _areas(boxes: Numbers) -> Numbers:
    areas: Numbers = np.prod(np.clip(boxes[:, 2:4] - boxes[:, :2], 0, None), axis=1)
    return areas
