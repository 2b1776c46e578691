// What a tar or a zip holds, told from its lists of members: stored ones are slices of the archive and cost nothing; packed
// ones are unpacked into the browser's own storage, up to a bound. Source: POSIX pax; PKWARE APPNOTE 6.3.10.
const MOST_UNPACKED = 2 * 2 ** 30, LONGEST_DIRECTORY = 64 * 2 ** 20, BLOCK = 512;

export class Unreadable extends Error {}
const cut = () => new Unreadable("The archive is cut off or damaged. Pack it again.");
const bytesOf = async (blob, from, to) => {
  if (from < 0 || to > blob.size || to < from) throw cut();
  return new Uint8Array(await blob.slice(from, to).arrayBuffer());
};
function textOf(bytes) {
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); }
  catch { throw new Unreadable("A name in the archive is not UTF-8. Rename the file, and pack the archive again."); }
}
const untilNul = (bytes) => { const end = bytes.indexOf(0); return end < 0 ? bytes : bytes.subarray(0, end); };

export const isArchive = (name) => /\.(zip|tar|tar\.gz|tgz)$/i.test(name);

// Members with {name, kind, size, open()}: `open` gives a Blob of just these bytes.
export async function membersOf(file) {
  const name = file.name.toLowerCase();
  if (name.endsWith(".zip")) return zipped(file);
  return tarred(name.endsWith(".tar") ? file : await inflated(file, "gzip", MOST_UNPACKED));
}

async function inflated(blob, format, most) {
  let size = 0;
  const bounded = new TransformStream({
    transform(chunk, out) {
      size += chunk.byteLength;
      if (size > most) throw new Unreadable("It holds more than a browser should unpack. Use the command line: sluicegate push ARCHIVE.");
      out.enqueue(chunk);
    },
  });
  try {
    return await new Response(blob.stream().pipeThrough(new DecompressionStream(format)).pipeThrough(bounded)).blob();
  } catch (error) {
    throw size > most ? new Unreadable("It holds more than a browser should unpack. Use the command line: sluicegate push ARCHIVE.")
      : error instanceof Unreadable ? error : cut();
  }
}

// --- tar

function numberIn(bytes) {
  if (bytes[0] & 0x80) return bytes.subarray(1).reduce((sum, byte) => sum * 256 + byte, bytes[0] & 0x7f);
  const text = textOf(untilNul(bytes)).trim();
  if (!/^[0-7]*$/.test(text)) throw cut();
  return text ? parseInt(text, 8) : 0;
}

function paxOf(bytes) {
  const found = {};
  for (let at = 0; at < bytes.length;) {
    const space = bytes.indexOf(0x20, at), length = Number(textOf(bytes.subarray(at, space)));
    if (space < 0 || !(length > 0) || at + length > bytes.length) throw cut();
    const record = textOf(bytes.subarray(space + 1, at + length - 1)), sign = record.indexOf("=");
    found[record.slice(0, sign)] = record.slice(sign + 1);
    at += length;
  }
  return found;
}

async function tarred(file) {
  const members = [];
  let at = 0, long = null, next = {}, all = {}, ended = false;
  while (at + BLOCK <= file.size) {
    const head = await bytesOf(file, at, at + BLOCK);
    if (head.every((byte) => byte === 0)) {
      ended = (await bytesOf(file, at, Math.min(at + 2 * BLOCK, file.size))).every((byte) => byte === 0) && at + 2 * BLOCK <= file.size;
      break;
    }
    const sum = head.reduce((total, byte, i) => total + (i >= 148 && i < 156 ? 32 : byte), 0);
    if (sum !== numberIn(head.subarray(148, 156))) throw cut();
    const kind = String.fromCharCode(head[156] || 48), said = numberIn(head.subarray(124, 136)), start = at + BLOCK;
    if (kind === "L" || kind === "K" || kind === "x" || kind === "g") {
      if (said > 2 ** 20) throw cut();
      const data = await bytesOf(file, start, start + said);
      if (kind === "L") long = textOf(untilNul(data));
      if (kind === "x") next = paxOf(data);
      if (kind === "g") all = { ...all, ...paxOf(data) };
      at = start + Math.ceil(said / BLOCK) * BLOCK;
      continue;
    }
    const told = { ...all, ...next }, isPosix = textOf(head.subarray(257, 263)) === "ustar\0";
    const short = textOf(untilNul(head.subarray(0, 100))), prefix = isPosix ? textOf(untilNul(head.subarray(345, 500))) : "";
    const size = told.size === undefined ? said : Number(told.size);
    const isSparse = kind === "S" || Object.keys(told).some((key) => key.startsWith("GNU.sparse"));
    const name = told.path ?? long ?? (prefix ? `${prefix}/${short}` : short);
    const sort = kind === "5" ? "folder" : kind === "1" || kind === "2" ? "link" : (kind === "0" || kind === "7") && !isSparse ? "file" : "other";
    if (!Number.isSafeInteger(size) || size < 0) throw cut();
    if (sort === "file" && start + size > file.size) throw cut();
    members.push({ name, kind: sort, size: sort === "file" ? size : 0, start, open: async () => file.slice(start, start + size) });
    if (members.length > 50_000) throw new Unreadable("The archive has too many members. Pack only the release folder.");
    at = start + (sort === "folder" ? 0 : Math.ceil(size / BLOCK) * BLOCK);
    long = null; next = {};
  }
  if (!ended) throw cut();
  return members;
}

// --- zip

async function zipped(file) {
  const tailAt = Math.max(0, file.size - 65_557), tail = await bytesOf(file, tailAt, file.size);
  const look = new DataView(tail.buffer);
  let end = tail.length - 22;
  while (end >= 0 && look.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw cut();
  let count = look.getUint16(end + 10, true), size = look.getUint32(end + 12, true), at = look.getUint32(end + 16, true);
  if (end >= 20 && look.getUint32(end - 20, true) === 0x07064b50) {
    const place = Number(look.getBigUint64(end - 12, true));
    const wide = new DataView((await bytesOf(file, place, place + 56)).buffer);
    if (wide.getUint32(0, true) !== 0x06064b50) throw cut();
    [count, size, at] = [32, 40, 48].map((field) => Number(wide.getBigUint64(field, true)));
  }
  if (size > LONGEST_DIRECTORY || count > 50_000) throw new Unreadable("The archive has too many members. Pack only the release folder.");
  const list = await bytesOf(file, at, at + size), view = new DataView(list.buffer), members = [];
  for (let i = 0, here = 0; i < count; i++) {
    if (here + 46 > list.length || view.getUint32(here, true) !== 0x02014b50) throw cut();
    const one = entryOf(view, list, here);
    here = one.next;
    members.push(await memberOf(file, one));
  }
  const total = members.reduce((sum, m) => sum + (m.method === 8 ? m.size : 0), 0);
  if (total > MOST_UNPACKED) {
    throw new Unreadable("It is packed, and unpacks to more than a browser should keep. Pack it without compression (zip -0), "
      + "or use the command line: sluicegate push ARCHIVE.");
  }
  return members;
}

function entryOf(view, list, at) {
  const u16 = (offset) => view.getUint16(at + offset, true), u32 = (offset) => view.getUint32(at + offset, true);
  const [nameLength, extraLength, noteLength] = [u16(28), u16(30), u16(32)];
  const extraAt = at + 46 + nameLength, one = {
    flags: u16(8), method: u16(10), crc: u32(16), packed: u32(20), size: u32(24), start: u32(42), system: u16(4) >> 8,
    mode: u32(38) >>> 16, name: textOf(list.subarray(at + 46, extraAt)), next: extraAt + extraLength + noteLength,
  };
  if (one.next > list.length) throw cut();
  for (let here = extraAt; here + 4 <= extraAt + extraLength;) {
    const id = view.getUint16(here, true), length = view.getUint16(here + 2, true);
    if (id === 1) {
      let field = here + 4;
      for (const name of ["size", "packed", "start"]) {
        if (one[name] === 0xffffffff) { one[name] = Number(view.getBigUint64(field, true)); field += 8; }
      }
    }
    here += 4 + length;
  }
  return one;
}

async function memberOf(file, one) {
  const head = new DataView((await bytesOf(file, one.start, one.start + 30)).buffer);
  if (head.getUint32(0, true) !== 0x04034b50) throw cut();
  const start = one.start + 30 + head.getUint16(26, true) + head.getUint16(28, true), end = start + one.packed;
  if (end > file.size) throw cut();
  const type = one.system === 3 ? one.mode & 0o170000 : 0;
  const kind = one.name.endsWith("/") || type === 0o040000 ? "folder" : type === 0o120000 ? "link" : type === 0 || type === 0o100000 ? "file" : "other";
  if (one.flags & 1) throw new Unreadable("The archive has a password. Pack it without one.");
  if (one.method !== 0 && one.method !== 8) throw new Unreadable(`${one.name} is packed by method ${one.method}. Pack with ordinary compression.`);
  if (one.method === 0 && one.packed !== one.size) throw cut();
  const slice = file.slice(start, end);
  const open = async () => {
    if (one.method === 0) return slice;
    const blob = await inflated(slice, "deflate-raw", one.size);
    if (blob.size !== one.size) throw cut();
    return blob;
  };
  return { name: one.name, kind, size: one.size, packed: one.packed, start, crc: one.crc, method: one.method, open };
}
