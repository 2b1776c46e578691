// sha256 of a whole file and of each of its parts, in one reading; known ones of an earlier visit are not computed again.
import "../hash-wasm-sha256-4.13.0.umd.min.js";
import { digestOf, keepDigest } from "./handles.js";

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});
function crcOf(bytes, before) {
  let value = ~before;
  for (let i = 0; i < bytes.length; i++) value = (value >>> 8) ^ CRC[(value ^ bytes[i]) & 0xff];
  return ~value >>> 0;
}
const hexOf = (buffer) => Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Changed extends Error {}

// one: {path, blob, modified, source, crc?}. `onBytes` is told how many bytes were hashed. Returns {sha256, parts: [sha256]}.
export async function digestsOf(one, partSize, onBytes, rest) {
  const { path, blob } = one, key = `${one.source}|${path}|${blob.size}|${one.modified}|${partSize}`;
  const known = one.modified ? await digestOf(key) : undefined;
  if (known) { onBytes(blob.size); return known; }
  const whole = await self.hashwasm.createSHA256(), parts = [];
  whole.init();
  let crc = 0;
  for (let at = 0; at < blob.size || at === 0; at += partSize) {
    await rest();
    let bytes;
    try { bytes = new Uint8Array(await blob.slice(at, at + partSize).arrayBuffer()); }
    catch { throw new Changed(`${path} cannot be read any more: it was changed or moved. Choose the folder again.`); }
    if (bytes.length !== Math.min(partSize, blob.size - at)) throw new Changed(`${path} has become shorter. Choose the folder again.`);
    const part = self.crypto.subtle ? self.crypto.subtle.digest("SHA-256", bytes).then(hexOf) : self.hashwasm.sha256(bytes);
    whole.update(bytes);
    if (one.crc !== undefined) crc = crcOf(bytes, crc);
    parts.push(await part);
    onBytes(bytes.length);
  }
  if (one.crc !== undefined && crc !== one.crc) throw new Changed(`${path} is damaged in the archive: its checksum differs. Pack it again.`);
  const made = { sha256: whole.digest("hex"), parts };
  if (one.modified) await keepDigest(key, made);
  return made;
}
