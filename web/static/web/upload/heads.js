// What the server's check reads headers from: the first bytes of a file, and of a large ONNX graph everything but its weights.
// All bytes together, as registry/core/formats/heads.py has it, and of the whole body, which the list of files is a part of.
const MOST_IN_ALL = 1.5 * 2 ** 20, LONGEST_BODY = 2_300_000, LEAST = 64 * 1024, MOST_FILES = 200;
const WHOLE = /\.(onnx|json|pbtxt)$/i;

const base64Of = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});

// {heads: path → {head} or {pieces} as the API takes them, unread: [paths of which the header is too long to be sent]}
// The first bytes of a file of any name are sent: a graph may name it as its data, and data may not be an archive.
export async function headsOf(files) {
  const heads = new Map(), unread = [];
  const ofList = files.reduce((sum, { path }) => sum + 2 * path.length + 100, 0);
  let left = Math.max(0, Math.min(MOST_IN_ALL, 0.75 * (LONGEST_BODY - ofList)));
  const rank = ({ path }) => (/pbtxt$/.test(path) ? 0 : path.startsWith("artifact/model.") ? 1 : path.startsWith("tokenizer/") ? 2 : 3);
  for (const { path, blob } of [...files].sort((a, b) => rank(a) - rank(b))) {
    if (!blob.size) continue;
    try {
      const ranges = await rangesOf(path, blob, left);
      if (!ranges || heads.size >= MOST_FILES) { unread.push(path); continue; }
      left -= ranges.reduce((sum, [from, to]) => sum + to - from, 0);
      const pieces = await Promise.all(ranges.map(async ([from, to]) => ({ offset: from, base64: await base64Of(blob.slice(from, to)) })));
      heads.set(path, pieces.length === 1 && pieces[0].offset === 0 ? { head: pieces[0].base64 } : { pieces });
    } catch { /* unreadable now: hashing says so */ }
  }
  return { heads, unread };
}

// [[from, to]] of the bytes that hold the header; null if they are more than `most`.
async function rangesOf(path, blob, most) {
  if (/\.onnx$/i.test(path) && blob.size > LEAST) return new Skeleton(blob, most).ranges();
  if (WHOLE.test(path)) return blob.size <= most ? [[0, blob.size]] : null;
  let length = LEAST;
  if (/\.safetensors$/i.test(path) && blob.size >= 8) {
    const stated = new DataView(await blob.slice(0, 8).arrayBuffer()).getBigUint64(0, true);
    length = Math.max(LEAST, 8 + Number(stated));
  }
  length = Math.min(length, blob.size);
  return length <= most ? [[0, length]] : null;
}

// --- an ONNX graph without its weights

// Field numbers of onnx.proto: which fields of a message are messages that hold weights at some depth.
const MODEL = { 7: () => GRAPH, 20: () => TRAINING, 25: () => FUNCTION }, TRAINING = { 1: () => GRAPH, 2: () => GRAPH };
const GRAPH = { 1: () => NODE, 5: () => TENSOR, 15: () => SPARSE }, FUNCTION = { 7: () => NODE }, NODE = { 5: () => ATTRIBUTE };
const ATTRIBUTE = {
  5: () => TENSOR, 10: () => TENSOR, 6: () => GRAPH, 11: () => GRAPH, 22: () => SPARSE, 23: () => SPARSE,
}, SPARSE = { 1: () => TENSOR, 2: () => TENSOR }, TENSOR = {};
// Fields up to this size are kept whole; the server reads messages up to 1 KiB at once (registry/core/formats/protobuf.py).
const KEPT = 4096;
// What the server reads of a long text at most.
const TEXT = 1100;
const CHUNK = 64 * 1024;

class TooMuch extends Error {}

class Skeleton {
  // The first bytes are kept in any case: the server recognises by them what a file is.
  constructor(blob, most) {
    Object.assign(this, { blob, most, kept: [[0, LEAST]], size: LEAST, start: 0, held: new Uint8Array(0) });
  }

  // Source: protobuf.dev/programming-guides/encoding. A broken file gives what was read so far; the server says what is wrong.
  async ranges() {
    try {
      await this.walk(0, this.blob.size, MODEL);
    } catch (error) {
      if (error instanceof TooMuch) return null;
      if (!(error instanceof RangeError)) throw error;
      this.keep(Math.min(this.at ?? 0, this.blob.size), Math.min((this.at ?? 0) + KEPT, this.blob.size));
    }
    return this.kept;
  }

  keep(from, to) {
    const last = this.kept[this.kept.length - 1];
    from = Math.max(from, last[1]);
    if (to <= from) return;
    this.size += to - from;
    if (this.size > this.most) throw new TooMuch();
    if (last[1] === from) last[1] = to; else this.kept.push([from, to]);
  }

  async byte(at) {
    if (at >= this.blob.size) throw new RangeError();
    if (at < this.start || at >= this.start + this.held.length) {
      this.start = at;
      this.held = new Uint8Array(await this.blob.slice(at, at + CHUNK).arrayBuffer());
    }
    return this.held[at - this.start];
  }

  // [number, place behind it]; a length beyond 2^53 is one that no file has
  async varint(at) {
    let value = 0, factor = 1;
    for (let i = 0; i < 10; i++, factor *= 128) {
      const byte = await this.byte(at++);
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return [value, at];
    }
    throw new RangeError();
  }

  async walk(from, to, fields) {
    for (let at = from; at < to;) {
      this.at = at;
      const [key, behind] = await this.varint(at), number = Math.floor(key / 8), type = key % 8;
      if (type === 0) { const [, next] = await this.varint(behind); this.keep(at, next); at = next; continue; }
      if (type === 1 || type === 5) { const next = behind + (type === 1 ? 8 : 4); this.keep(at, next); at = next; continue; }
      if (type !== 2) throw new RangeError();
      const [length, start] = await this.varint(behind), next = start + length;
      if (next > to) throw new RangeError();
      if (length <= KEPT) this.keep(at, next);
      else {
        this.keep(at, start);
        if (fields[number]) await this.walk(start, next, fields[number]()); else this.keep(start, start + TEXT);
      }
      at = next;
    }
  }
}
