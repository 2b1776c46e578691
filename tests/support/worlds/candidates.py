"""Releases with a stated fate: what is good passes every gate, and what is bad is stopped, by this gate and with these words.

Those of the model `sentiment` are the real sentence encoder of examples/sentiment, as it is and spoilt; all others are small models
that go wrong as large ones do. Loads are asked of models whose work is sleep, and beside the stable release, so that it does not
count how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from registry.adapters import pbtxt
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs
from tests.support.worlds import golden_models
from tests.support.worlds.candidate_models import MOST_TOKENS, Make, generating, numbers, texts
from tests.support.worlds.sentiment_candidates import gate_policy, golden, sentiment
from validators.core.golden_set import GoldenItem
from validators.core.verdict import Verdict

PASSED, FAILED = Verdict.PASSED, Verdict.FAILED
#: Where a release is refused before it is one.
UPLOAD = "upload"
MIB_IN_100_REQUESTS = 2**20 // 100


@dataclass(frozen=True)
class Trial:
    """What candidates are judged by: a gate policy, its golden set, what their envelope declares, and the release to compare with."""

    policy: Mapping[str, Any]
    items: Callable[[], Sequence[GoldenItem]] = tuple
    envelope: Mapping[str, Any] = field(default_factory=dict)
    stable: Make | None = None


@dataclass(frozen=True)
class Candidate:
    """`gate`: the one that stops it, none of a good one; `says`: a pattern that its reason holds; `in_tests`: `make test` runs it."""

    name: str
    how: str
    release: Make
    trial: Trial
    gate: str = ""
    says: str = ""
    in_tests: bool = False

    @property
    def verdict(self) -> Verdict:
        return FAILED if self.gate else PASSED

    @property
    def judge(self) -> str:
        """The gate that judges it last: the one that stops it, or of a good one the last of all."""
        return self.gate or str(self.trial.policy["gates"][-1])


def _golden(compare: str, items: Callable[[], Sequence[GoldenItem]], stable: Make | None, **golden: Any) -> Trial:
    policy = {
        "gates": ["contract", "cold_start", "golden"],
        "golden": {"set": f"sha256:{'0' * 64}", "compare": compare, **golden},
    }
    return Trial(policy, items, stable=stable)


def _load(words: int, **load: Any) -> Trial:
    """Half a second is twenty times what these take at leisure."""
    policy = {
        "gates": ["contract", "cold_start", "load"],
        "cold_start": {"inferences": 10},
        "load": {"slo_ms": 500, "max_lag_ms": 250, "burst_s": 0, **load},
    }
    items = [GoldenItem(str(at), {"text": " ".join(["word"] * words)}, 0) for at in range(64)]
    return Trial(policy, lambda: items, {"limits": {"max_input_tokens": MOST_TOKENS}}, texts())


def _net(graph: bytes, outputs: int) -> Make:
    own = made.serving(
        max_batch_size=16,
        inputs=[{"name": "x", "data_type": "FP32", "dims": [golden_models.INPUTS]}],
        outputs=[{"name": "y", "data_type": "FP32", "dims": [outputs]}],
    )
    return lambda blobs: made.manifest(blobs, "net", {"artifact/model.onnx": graph}, own)


def embedding(**how: Any) -> Make:
    return _net(golden_models.embedding_graph(**how), golden_models.OUTPUTS)


def price(**how: Any) -> Make:
    return _net(golden_models.price_graph(**how), 1)


def text_embedding(*, counts_padding: bool) -> Make:
    files = {
        "artifact/model.onnx": golden_models.text_embedding_graph(counts_padding=counts_padding),
        "tokenizer/tokenizer.json": made.word_level_tokenizer(),
    }
    own = made.text_serving() | {
        "max_batch_size": 16, "warmup": [],
        "outputs": [{"name": "y", "data_type": "FP32", "dims": [golden_models.OUTPUTS]}],
    }  # fmt: skip
    return lambda blobs: made.manifest(blobs, "net", files, own)


def with_config(text: str) -> Make:
    """A release whose folder brings this config.pbtxt. Raises Invalid as its upload is refused."""

    def make(blobs: MemoryBlobs) -> dict[str, Any]:
        pbtxt.parse(text)
        return numbers()(blobs)

    return make


SENTENCES = Trial(
    gate_policy(), golden, {"limits": {"max_batch_size": 16, "max_input_tokens": MOST_TOKENS}}, sentiment("r1")
)
NUMBERS = Trial(
    {
        "gates": ["contract", "cold_start", "resources"],
        "load": {"rate_per_s": 200},
        "resources": {"min_requests": 2000, "max_soak_s": 20, "max_cpu_ms": 100},
    },
    envelope={"host": {"memory_mib_min": 2048}},
)
SMALL = Trial(
    {**NUMBERS.policy, "resources": {"min_requests": 100, "max_soak_s": 1}}, envelope={"host": {"memory_mib_min": 16}}
)
VECTORS = _golden("cosine", lambda: golden_models.vectors(120), embedding())
#: True values that every model misses by more than rounding, and nothing to compare with: only batches can tell.
WIDE = _golden("cosine", lambda: golden_models.vectors(120), None, right_within=0.2)
PRICES = _golden("largest_relative_error", lambda: golden_models.vectors(120, is_price=True), price())
PADDABLE = _golden("cosine", lambda: golden_models.sentences(120), text_embedding(counts_padding=False), batch_size=1)
#: At 60/s one by one keeps it busy two seconds in five; in full batches that are padded it serves 39/s.
IN_BATCHES = _load(20, rate_per_s=60, slo_quantile=0.9, slo_ms=1000, max_lag_ms=400)
#: Fewer requests than one in five may be over, so that one in eight by itself does not fail the mix.
BY_CLASS = _load(3, rate_per_s=8, slo_quantile=0.8)
AFTER_A_BURST = _load(3, rate_per_s=20, slo_quantile=0.9, burst_factor=4, burst_s=1.2, recovery_s=2)
#: A text of so many bytes is 17,500 words, 3.5 s of work.
LONG_TEXTS = Trial({"gates": ["contract"]}, envelope={"limits": {"max_request_bytes": 70_000}})
P99 = _load(3, rate_per_s=20, slo_quantile=0.99)
GENERATOR = generating()
_PROMPTS = [GoldenItem(str(at), {"text": f"prompt {at}"}, None, expected={"y": ""}) for at in range(24)]
#: Nobody knows what is right of a made-up language: what stable writes is asked for.
WRITTEN = _golden("exact_text", lambda: _PROMPTS, GENERATOR, min_accuracy=None, min_slice_accuracy=None, alone_items=8)
#: At 4/s one slot is busy four fifths of the time: whole answers stay well within 5 s, and one request in two waits.
FIRST_WORD = Trial(
    {
        "gates": ["contract", "cold_start", "load"],
        "load": {
            "rate_per_s": 4,
            "slo_ms": 5000,
            "ttft_slo_ms": 120,
            "slo_quantile": 0.9,
            "max_lag_ms": 60,
            "burst_s": 0,
        },
    },
    lambda: _PROMPTS,
    stable=GENERATOR,
)
#: Eight slots, of which even the slow one keeps three busy: a first word waits for nothing but the machine.
EVERY_WORD = Trial(
    {
        "gates": ["contract", "cold_start", "load"],
        "load": {
            "rate_per_s": 2,
            "slo_ms": 5000,
            "ttft_slo_ms": 500,
            "itl_slo_ms": 50,
            "slo_quantile": 0.9,
            "max_lag_ms": 60,
            "burst_s": 0,
        },
    },
    lambda: _PROMPTS,
    stable=generating(slots=8),
)

CANDIDATES: tuple[Candidate, ...] = (
    Candidate("good", "the sentence encoder, 32-bit", sentiment("r1"), SENTENCES),
    Candidate("faster and as good", "the same in 8 bits, a scale for each channel", sentiment("r2"), SENTENCES),
    Candidate(
        "quantised carelessly", "8 bits, one scale for each matrix",
        sentiment("r1", spoilt="per tensor"), SENTENCES, "golden", "agreement with stable is 9[0-4]",
    ),
    Candidate(
        "wrong tokenizer", "the same model; its tokenizer keeps capitals",
        sentiment("r3"), SENTENCES, "golden", "agreement with stable is 9[0-4]",
    ),
    Candidate(
        "retrained without a slice", "its head never saw tweets",
        sentiment("r1", spoilt="without tweets"), SENTENCES, "golden", "agreement with stable is 94", in_tests=True,
    ),
    Candidate("fast on every request", "no fault, the p99 asked for", texts(), P99),
    Candidate("slow tail", "one request in fifty takes .6 s", texts("tail"), P99, "load", "it is slower"),
    Candidate("leaves nothing", "no fault", numbers(), NUMBERS, says=r"A request took [\d.]+ ms", in_tests=True),
    Candidate(
        "leaks 64 KiB a request", "keeps as much of each request",
        numbers(keeps_bytes=2**16), NUMBERS, "resources", r"grew by (5|6|7)\d{4} bytes a request",
    ),
    Candidate(
        "leaks 1 MiB per 100 requests", "keeps as much of each request",
        numbers(keeps_bytes=MIB_IN_100_REQUESTS), NUMBERS, "resources", r"It leaks: .* grew by ([7-9]|1[0-5])\d{3} bytes a request",
        in_tests=True,
    ),
    Candidate(
        "holds more than it declares", "16 MiB in its envelope",
        numbers(), SMALL, "resources", "Its envelope declares 16 MiB", in_tests=True,
    ),
    Candidate(
        "crashes above batch 16", "its process ends; it declares batches of 32",
        numbers("crash above 16", max_batch_size=32), NUMBERS, "contract", "was not answered", in_tests=True,
    ),
    Candidate(
        "no memory above batch 16", "MemoryError; it declares batches of 32",
        numbers("no memory above 16", max_batch_size=32), NUMBERS, "contract", "not answered: .* MemoryError", in_tests=True,
    ),
    Candidate("takes the largest request", "no fault; it declares requests of 70,000 bytes", texts(), LONG_TEXTS),
    Candidate(
        "breaks at the largest request", "a text of more than 64 KiB ends its process; it declares requests of 70,000 bytes",
        texts("long"), LONG_TEXTS, "contract", "[Aa] request of 69999 bytes", in_tests=True,
    ),
    Candidate("wrong output type", "INT64 for FP32", numbers("type"), NUMBERS, "contract", "came as INT64", in_tests=True),
    Candidate("wrong output name", "`why` for `y`", numbers("name"), NUMBERS, "contract", "lacks output y", in_tests=True),
    Candidate("wrong output shape", "seven for four", numbers("shape"), NUMBERS, "contract", r"came as \[1, 7\]", in_tests=True),
    Candidate("not a number", "NaN", numbers("not finite"), NUMBERS, "contract", "holds . NaN", in_tests=True),
    Candidate(
        "bad config.pbtxt", "a field that Triton does not know, in line 4",
        with_config('name: "sentiment"\nbackend: "sluicegate-onnx"\nmax_batch_size: 16\nbogus_field: 1\n'),
        NUMBERS, UPLOAD, "config.pbtxt:4:1", in_tests=True,
    ),
    Candidate(
        "not deterministic", "noise is added to each answer",
        embedding(noise=0.05), WIDE, "golden", "answers change when the item is asked alone", in_tests=True,
    ),
    Candidate("deterministic", "no fault", embedding(), WIDE),
    Candidate("texts one by one", "no fault", texts(max_batch_size=16), IN_BATCHES),
    Candidate(
        "collapses under padded batches", "works on each text as if it were the batch's longest",
        texts("padded", max_batch_size=16), IN_BATCHES, "load", "it never empties|it is slower",
    ),
    Candidate("batches do not matter", "no fault", text_embedding(counts_padding=False), PADDABLE),
    Candidate(
        "wrong in padded batches", "its mean is over the padding, too",
        text_embedding(counts_padding=True), PADDABLE, "golden", "answers change when the batch is full",
    ),
    Candidate("fast in every class", "no fault", texts(), BY_CLASS),
    Candidate(
        "slow only for the longest class", "more than a hundred words take .9 s",
        texts("longest", instances=4), BY_CLASS, "load", "Of the class longest ", in_tests=True,
    ),
    Candidate("over a burst at once", "no fault", texts(), AFTER_A_BURST, in_tests=True),
    Candidate(
        "slow only right after a burst", "60 ms each for half a minute",
        texts("burst"), AFTER_A_BURST, "load", "it was not back within 500 ms", in_tests=True,
    ),
    Candidate("embedding in half precision", "16 bits", embedding(is_half=True), VECTORS),
    Candidate(
        "embedding off by a rotation", "turned by 5 degrees", embedding(turned_by=5.0), VECTORS, "golden", "agreement with stable is 0.00%",
    ),
    Candidate("regression in half precision", "16 bits", price(is_half=True), PRICES),
    Candidate("regression off by 0.1 %", "times 1.001", price(factor=1.001), PRICES),
    Candidate("regression off by 2 %", "times 1.02", price(factor=1.02), PRICES, "golden", "agreement with stable is 0.00%"),
    Candidate("language model, four slots", "no fault", generating(), FIRST_WORD),
    Candidate(
        "language model with one slot", "one instance for four: as many words a second, which wait for each other",
        generating(slots=1), FIRST_WORD, "load", "Time to first token: .* it is slower",
    ),
    Candidate("language model, word after word", "no fault, eight slots", generating(slots=8), EVERY_WORD),
    Candidate(
        "language model, slow word after word", "its first word comes as ever, each other after 80 ms instead of 10",
        generating(slots=8, later_s=0.08), EVERY_WORD, "load", "Time between tokens: .* it is slower",
    ),
    Candidate("language model, all its layers", "no fault", generating(), WRITTEN),
    Candidate(
        "language model of 28 layers", "two of its 30 are cut off",
        generating(layers=28), WRITTEN, "golden", "agreement with stable is [0-9]\\.", in_tests=True,
    ),
)  # fmt: skip
