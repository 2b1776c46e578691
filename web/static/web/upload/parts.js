// One part on its way to the store, again and again until it is there or is refused for good.
import { mayComeBack } from "./api.js";
import { Changed } from "./digests.js";

const LONGEST_PAUSE_MS = 30_000, FIRST_PAUSE_MS = 500, TRIES_OF_403 = 4;

export class NotTaken extends Error {
  constructor(message, code) { super(message); this.code = code; }
}

// XMLHttpRequest, because fetch tells nothing of what was sent.
function put(signed, blob, onSent, stops) {
  return new Promise((done, failed) => {
    const x = new XMLHttpRequest();
    let sent = 0;
    const count = (total) => { onSent(total - sent); sent = total; };
    const fail = (status) => { count(0); failed(Object.assign(new Error(`status ${status}`), { status })); };
    x.open("PUT", signed.url);
    for (const [name, value] of Object.entries(signed.headers)) x.setRequestHeader(name, value);
    x.upload.onprogress = (event) => count(event.loaded);
    x.onload = () => { if (x.status >= 200 && x.status < 300) { count(blob.size); done(); } else fail(x.status); };
    x.onerror = x.ontimeout = x.onabort = () => fail(0);
    x.timeout = 600_000;
    stops.add(x);
    x.onloadend = () => stops.delete(x);
    x.send(blob);
  });
}

// work: {api, rest, wait(ms, why), stops, onSent(path, bytes)}; job: {id, path, blob, partSize, digests, signed?}
export async function sendPart(work, job, number) {
  const from = (number - 1) * job.partSize, blob = job.blob.slice(from, from + job.partSize);
  let refused = 0;
  for (let tried = 0; ; tried++) {
    await work.rest();
    try {
      const given = job.signed?.number === number ? job.signed : null;
      job.signed = null;  // an address is used once; the next try asks for another
      const signed = given ?? (await work.api(`/uploads/${job.id}/parts:sign`, { numbers: [number], sha256: [job.digests.parts[number - 1]] })).parts[0];
      await put(signed, blob, (bytes) => work.onSent(job, bytes), work.stops);
      work.isWell();
      return;
    } catch (error) {
      if (work.isOver()) throw error;
      if (await isUnreadable(blob)) throw new Changed(`${job.path} was changed or moved while it was sent. Choose the folder again.`);
      if (error.code === "upload_over" || error.code === "part_mismatch" && await hasArrived(work, job, number)) return;
      const status = error.status;
      if (status === 403 && !error.code && ++refused < TRIES_OF_403 || status === 404 && !error.code && ++refused < TRIES_OF_403 || mayComeBack(status)) {
        const pause = error.retryAfter ? error.retryAfter * 1000 : Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** tried);
        await work.wait(pause * (0.75 + Math.random() / 2), status);
        continue;
      }
      if (error.code) throw error;
      throw new NotTaken(`Part ${number} of ${job.path} is refused (${status}): its bytes have not the sha256 that was announced, or the store `
        + "does not let this page in. Choose the folder again, or ask whoever runs the store.", "part_refused");
    }
  }
}

async function isUnreadable(blob) {
  try { await blob.slice(0, 1).arrayBuffer(); return false; } catch { return true; }
}

async function hasArrived(work, job, number) {
  const told = await work.api(`/uploads/${job.id}`);
  return told.state !== "open" || !told.missing.includes(number);
}
