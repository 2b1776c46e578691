// What outlives a reload, in IndexedDB: the unfinished upload of each model (with the folder's handle, where the browser has
// one) and the sha256 of files that were hashed. Never a File: that would copy its bytes.
const NAME = "sluicegate-uploads", VERSION = 1;
let opening = null;

function open() {
  opening ??= new Promise((done, failed) => {
    const asked = indexedDB.open(NAME, VERSION);
    asked.onupgradeneeded = () => { asked.result.createObjectStore("digests"); asked.result.createObjectStore("uploads"); };
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => failed(asked.error);
  });
  return opening;
}

// The result of one request; undefined where the browser keeps nothing (private windows), for nothing depends on it.
async function ask(store, mode, request) {
  try {
    const base = await open();
    return await new Promise((done, failed) => {
      const asked = request(base.transaction(store, mode).objectStore(store));
      asked.onsuccess = () => done(asked.result);
      asked.onerror = () => failed(asked.error);
    });
  } catch {
    return undefined;
  }
}

export const digestOf = (key) => ask("digests", "readonly", (s) => s.get(key));
export const keepDigest = (key, made) => ask("digests", "readwrite", (s) => s.put(made, key));
export const unfinished = (model) => ask("uploads", "readonly", (s) => s.get(model));
export const keepUnfinished = (model, upload) => ask("uploads", "readwrite", (s) => s.put(upload, model));
export const forget = (model) => ask("uploads", "readwrite", (s) => s.delete(model));
