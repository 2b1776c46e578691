// The first bytes of files, which the server's check reads headers from: of weights as long as their header is, of small files all.
const LONGEST = 256 * 1024, LEAST = 64 * 1024, MOST_FILES = 40, MOST_IN_ALL = 2 ** 20;
const TOLD = /\.(safetensors|onnx|gguf|plan|pt|json|py|ya?ml|txt|pbtxt|data|md|csv|tsv|vocab|merges|model)$/i;

async function lengthOf(path, blob) {
  if (!/\.safetensors$/i.test(path) || blob.size < 8) return Math.min(blob.size, /\.(onnx|json|pbtxt)$/i.test(path) ? LONGEST : LEAST);
  const length = new DataView(await blob.slice(0, 8).arrayBuffer()).getBigUint64(0, true);
  return Math.min(blob.size, LONGEST, Math.max(LEAST, 8 + Number(length)));
}

const base64Of = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});

// path → base64 of its first bytes
export async function headsOf(files) {
  const found = new Map();
  let left = MOST_IN_ALL;
  const rank = ({ path }) => (/pbtxt$/.test(path) ? 0 : path.startsWith("artifact/model.") ? 1 : 2);
  for (const { path, blob } of [...files].sort((a, b) => rank(a) - rank(b))) {
    if (found.size >= MOST_FILES || !TOLD.test(path) || !blob.size) continue;
    try {
      const length = await lengthOf(path, blob);
      if (length > left) continue;
      left -= length;
      found.set(path, await base64Of(blob.slice(0, length)));
    } catch { /* unreadable now: hashing says so */ }
  }
  return found;
}
