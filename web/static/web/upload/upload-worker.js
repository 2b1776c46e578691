// Hashes the files, begins or finds the draft, and sends what it lacks, several parts at once. Talks to upload-page.js:
//   in:  {kind: "start", slug, csrf, spec, files, partSize, atOnce} · {kind: "pause"} · {kind: "resume"} · {kind: "stop"}
//   out: progress · file · hashed · draft · sent · waiting · failed
import { apiOf, mayComeBack, Refused } from "./api.js";
import { digestsOf } from "./digests.js";
import { sendPart } from "./parts.js";

//: What is answered when the draft was sealed, discarded or overtaken meanwhile: a draft is begun anew.
const OVERTAKEN = new Set(["no_such_release", "not_a_draft", "no_such_upload", "upload_gone"]);
const TELL_EVERY_MS = 250, DRAFTS = 3;

let paused = false, stopped = false, wake = [];
const stops = new Set(), told = { hashed: 0, sent: 0, held: 0, total: 0, files: new Map(), at: 0, timer: 0 };
const say = (kind, facts = {}) => postMessage({ kind, ...facts });

function tell() {
  clearTimeout(told.timer); told.timer = 0; told.at = performance.now();
  say("progress", { hashed: told.hashed, sent: told.sent, held: told.held, total: told.total, files: [...told.files] });
  told.files.clear();
}
function note(path, facts) {
  told.files.set(path, { ...told.files.get(path), ...facts });
  if (!told.timer) told.timer = setTimeout(tell, Math.max(0, TELL_EVERY_MS - (performance.now() - told.at)));
}

async function rest() {
  while (paused && !stopped) await new Promise((done) => wake.push(done));
  if (stopped) throw new Error("stopped");
}
async function wait(ms, status) {
  say("waiting", { status, seconds: Math.ceil(ms / 1000) });
  await new Promise((done) => { const timer = setTimeout(done, ms); wake.push(() => { clearTimeout(timer); done(); }); });
  await rest();
}
const wakeAll = () => { const waiting = wake; wake = []; for (const done of waiting) done(); };

// A call that is repeated for as long as nobody answers.
const patient = (api) => async (path, body, method) => {
  for (let tried = 0; ; tried++) {
    await rest();
    try { return await api(path, body, method); } catch (error) {
      if (!(error instanceof Refused) || !mayComeBack(error.status)) throw error;
      await wait(error.retryAfter ? error.retryAfter * 1000 : Math.min(30_000, 500 * 2 ** tried), error.status);
    }
  }
};

async function begin(work, draft, one) {
  const { path, blob, digests } = one;
  const begun = await work.api("/uploads", { release: draft, path, size_bytes: blob.size, sha256: digests.sha256 });
  if (begun.exists || begun.state !== "open") { held(one, blob.size); return null; }
  if (begun.part_size !== one.partSize) throw new Error("The size of parts was changed on the server. Reload this page, and choose the files again.");
  const job = { id: begun.upload_id, path, blob, partSize: begun.part_size, digests, signed: begun.signed?.[0], sent: 0, missing: begun.missing };
  const missing = begun.missing.reduce((sum, n) => sum + Math.min(job.partSize, blob.size - (n - 1) * job.partSize), 0);
  held(one, blob.size - missing);
  job.sent = blob.size - missing;
  job.open = job.missing.length;
  if (!job.open) await complete(work, job);
  return job;
}
function held(one, bytes) {
  told.held += bytes;
  note(one.path, { sent: bytes, state: bytes === one.blob.size ? "there" : "sending" });
}
async function complete(work, job) {
  await work.api(`/uploads/${job.id}:complete`, {});
  note(job.path, { sent: job.blob.size, state: "sent" });
}

// A draft of just these files, filled: 404 and 409 of one that went away begin another.
async function fill(work, message, files) {
  const announced = files.map(({ path, blob, digests }) => ({ path, size_bytes: blob.size, sha256: digests.sha256 }));
  const draft = await work.api(`/models/${message.slug}/releases`, { ...message.spec, files: announced, resume: true });
  say("draft", { id: draft.id, version: draft.version });
  told.sent = told.held = 0;
  const waiting = new Set(draft.missing);
  for (const one of files) if (!waiting.has(one.path)) held(one, one.blob.size);
  const queue = files.filter((one) => waiting.has(one.path)), parts = [];
  let failed = null, beginning = 0;
  const runner = async () => {
    while (!failed) {
      await rest();
      const next = parts.shift();
      if (next) {
        await sendPart(work, next.job, next.number);
        if (--next.job.open === 0) await complete(work, next.job);
      } else if (queue.length) {
        beginning++;
        const job = await begin(work, draft.id, queue.shift());
        beginning--;
        if (job) parts.push(...job.missing.map((number) => ({ job, number })));
        wakeAll();
      } else if (beginning) await new Promise((done) => wake.push(done));
      else return;
    }
  };
  const runners = Array.from({ length: message.atOnce }, () => runner().catch((error) => { failed ??= error; wakeAll(); }));
  await Promise.all(runners);
  if (failed) throw failed;
  return draft.id;
}

async function start(message) {
  const files = message.files;
  told.total = files.reduce((sum, one) => sum + one.blob.size, 0);
  const work = {
    api: patient(apiOf(() => message.csrf)), rest, wait, stops, isOver: () => stopped, isWell: () => say("well"),
    onSent: (job, bytes) => { told.sent += bytes; job.sent += bytes; note(job.path, { sent: job.sent, state: "sending" }); },
  };
  for (const one of files) {
    let partSize = message.partSize;
    while (Math.ceil(one.blob.size / partSize) >= 2000) partSize *= 2;  // registry/core/uploads.py
    one.partSize = partSize;
    let hashed = 0;
    one.digests = await digestsOf(one, partSize, (bytes) => { told.hashed += bytes; hashed += bytes; note(one.path, { hashed, state: "hashing" }); }, rest);
    note(one.path, { hashed: one.blob.size, state: "hashed" });
  }
  tell();
  say("hashed", { digests: files.map(({ path, digests }) => [path, digests.sha256]) });
  for (let again = 1; ; again++) {
    try {
      const draft = await fill(work, message, files);
      tell();
      say("sent", { draft });
      return;
    } catch (error) {
      if (stopped || !OVERTAKEN.has(error.code) || again === DRAFTS) throw error;
    }
  }
}

self.onmessage = async ({ data }) => {
  if (data.kind === "pause") { paused = true; for (const x of [...stops]) x.abort(); }
  else if (data.kind === "resume") { paused = false; wakeAll(); }
  else if (data.kind === "stop") { stopped = true; for (const x of [...stops]) x.abort(); wakeAll(); }
  else if (data.kind === "start") {
    try { await start(data); } catch (error) {
      const hadFailed = !stopped;
      stopped = true;
      for (const x of [...stops]) x.abort();
      tell();
      if (hadFailed) say("failed", { message: error.message, code: error.code || "", status: error.status ?? null, errors: error.errors || [] });
    }
  }
};
self.addEventListener("online", () => { if (!paused) wakeAll(); });
say("ready");
