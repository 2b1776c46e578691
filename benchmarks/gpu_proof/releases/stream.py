"""model.py of the proof's streaming release: a small transformer that decodes all its sequences together, token by token.

A request holds a text. Each byte of it is a token of the prompt; the response has a fixed number of tokens, one in each message.
The weights are random, so that the tokens mean nothing; their times are those of a model of this shape.
"""

import importlib
import json
import queue
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

VOCABULARY = 256


class NumpyDecoder:
    """No attention: each sequence is a vector, which the same weights move on for every token."""

    def __init__(self, width, layers, slots, longest):
        random = np.random.default_rng(2)
        self.weights = [random.standard_normal((width, width)).astype(np.float32) / width**0.5 for _ in range(layers)]
        self.embedding = random.standard_normal((VOCABULARY, width)).astype(np.float32)
        self.states = np.zeros((slots, width), np.float32)

    def start(self, slot, prompt):
        self.states[slot] = self.embedding[prompt].mean(0)

    def step(self, slots):
        state = self.states[slots]
        for weights in self.weights:
            state = np.tanh(state @ weights)
        tokens = (state @ self.embedding.T).argmax(1)
        self.states[slots] = state + 0.1 * self.embedding[tokens]
        return tokens.tolist()


class TorchDecoder:
    """Attention over a key-value cache with one row for each slot."""

    HEADS = 12

    def __init__(self, width, layers, slots, longest, device):
        self.torch = torch = importlib.import_module("torch")
        torch.manual_seed(2)
        self.device, self.longest = device, longest
        self.kind = torch.bfloat16 if device == "cuda" else torch.float32
        make = lambda *shape: (torch.randn(*shape, device=device) / shape[-1] ** 0.5).to(self.kind)  # noqa: E731
        self.layers = [
            {"qkv": make(3 * width, width), "out": make(width, width), "up": make(4 * width, width), "down": make(width, 4 * width)}
            for _ in range(layers)
        ]  # fmt: skip
        self.embedding, self.positions = make(VOCABULARY, width), make(longest, width)
        cache = (layers, 2, slots, self.HEADS, longest, width // self.HEADS)
        self.cache = torch.zeros(cache, device=device, dtype=self.kind)
        self.at = torch.zeros(slots, dtype=torch.long, device=device)
        self.last = torch.zeros(slots, dtype=torch.long, device=device)

    def start(self, slot, prompt):
        """The whole prompt but for its last token, in one pass; the first `step` takes that."""
        torch = self.torch
        tokens = torch.tensor(prompt, device=self.device)[-(self.longest // 2) :]
        count = len(tokens) - 1
        self.last[slot], self.at[slot] = tokens[-1], count
        if count:
            with torch.inference_mode():
                self._through(tokens[:-1][None], torch.arange(count, device=self.device)[None], [slot], count)

    def step(self, slots):
        torch = self.torch
        with torch.inference_mode():
            chosen = torch.tensor(slots, device=self.device)
            at = self.at[chosen][:, None]
            state = self._through(self.last[chosen][:, None], at, slots, int(at.max()) + 1)
            tokens = (state[:, -1] @ self.embedding.T).argmax(1)
            self.last[chosen] = tokens
            self.at[chosen] += 1
            return tokens.tolist()

    def _through(self, tokens, at, slots, until):
        """The states of these tokens [b, t], which lie at these positions of the slots; the cache takes them in."""
        torch = self.torch
        functional, chosen = torch.nn.functional, torch.tensor(slots, device=self.device)
        state = self.embedding[tokens] + self.positions[at]
        batch, count, width = state.shape
        sees = torch.arange(until, device=self.device)[None, None, None] <= at[:, None, :, None]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            mixed = functional.layer_norm(state, (width,)) @ layer["qkv"].T
            query, key, value = mixed.view(batch, count, 3, self.HEADS, -1).permute(2, 0, 3, 1, 4)
            for row, slot in enumerate(slots):
                cache[0, slot, :, at[row]] = key[row]
                cache[1, slot, :, at[row]] = value[row]
            keys, values = cache[0, chosen, :, :until], cache[1, chosen, :, :until]
            seen = functional.scaled_dot_product_attention(query, keys, values, attn_mask=sees)
            state = state + seen.transpose(1, 2).reshape(batch, count, width) @ layer["out"].T
            inner = functional.gelu(functional.layer_norm(state, (width,)) @ layer["up"].T)
            state = state + inner @ layer["down"].T
        return functional.layer_norm(state, (width,))


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads((Path(__file__).parent / "sluicegate.json").read_text())["parameters"]
        shape = [int(parameters[name]) for name in ("width", "layers", "slots", "longest")]
        self.tokens, self.free = int(parameters["tokens"]), list(range(int(parameters["slots"])))
        device = "cuda" if args["model_instance_kind"] == "GPU" else "cpu"
        self.decoder = TorchDecoder(*shape, device) if parameters["form"] == "torch" else NumpyDecoder(*shape)
        self.waiting = queue.Queue()
        self.worker = threading.Thread(target=self.decode, daemon=True)
        self.worker.start()

    def execute(self, requests):
        for request in requests:
            self.waiting.put(request)

    def finalize(self):
        self.waiting.put(None)
        self.worker.join(5)

    def decode(self):
        """Takes requests in while there are free slots, and gives every sequence one more token in each turn."""
        running = []  # [slot, sender, tokens left, shape]
        while True:
            while self.free and (not running or not self.waiting.empty()):
                request = self.waiting.get()
                if request is None:
                    return
                text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
                slot = self.free.pop()
                self.decoder.start(slot, list(text.reshape(-1)[0]) or [0])
                running.append([slot, request.get_response_sender(), self.tokens, text.shape])
            tokens = self.decoder.step([one[0] for one in running])
            for one, token in zip(running, tokens, strict=True):
                slot, sender, _, shape = one
                piece = np.full(shape, f"t{token} ".encode(), object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", piece)]))
                one[2] -= 1
                if not one[2]:
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    self.free.append(slot)
            running = [one for one in running if one[2]]
