// The upload under way and the seal: what the worker tells becomes bars and sentences; then the draft is watched until it is
// verified, and sealed when the person says so.
import { csrfNow, mayComeBack } from "./api.js";
import { durationText, sizeText } from "./words.js";

const LOOK_MS = 1000, NUDGE_MS = 10_000, SPEED_OVER_MS = 10_000, LEAST_PACE_MS = 1000, GATES_PATIENCE_MS = 120_000;
const by = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export class Sending {
  constructor({ facts, api, table, onState, onSealed }) {
    Object.assign(this, { facts, api, table, onState, onSealed });
    this.worker = null;
    this.isMoving = this.isReady = this.isSealed = this.isPaused = false;
    this.told = 0;
    this.seen = [];
    by("pause").addEventListener("click", () => this.pause(!this.isPaused));
    by("call-off").addEventListener("click", () => this.stop("The upload is stopped. What was sent stays there; press Send to go on."));
    by("seal").addEventListener("click", () => this.seal());
  }

  say(text, isBad = false) {
    by("sending-words").textContent = text;
    by("sending-words").classList.toggle("bad", isBad);
  }

  start(files, spec) {
    this.files = files;
    this.spec = spec;
    this.isMoving = true;
    this.isPaused = false;
    this.told = -1;
    this.seen = [];
    by("sending").hidden = false;
    by("seal-part").hidden = true;
    by("seal").disabled = false;
    this.isReady = false;
    by("pause").textContent = "Pause";
    for (const id of ["pause", "call-off"]) by(id).hidden = false;
    this.onState();
    this.say("Computing the sha256 of every file…");
    this.worker = new Worker(this.facts.worker, { type: "module" });
    this.worker.onmessage = ({ data }) => this[`on_${data.kind}`]?.(data);
    this.worker.onerror = (event) => this.on_failed({ message: `The worker broke: ${event.message || "it could not be loaded"}.`, errors: [] });
    const sent = files.map(({ path, blob, modified, source, crc }) => ({ path, blob, modified, source, crc }));
    this.worker.postMessage({
      kind: "start", slug: this.facts.slug, csrf: csrfNow(this.facts.csrf), spec: { ...spec, model: this.facts.slug }, files: sent,
      partSize: Number(this.facts.partSize), atOnce: Number(this.facts.atOnce),
    });
  }

  // What was sent is not what is chosen and written now: only what is seen is sealed.
  changed() {
    if (!this.isReady) return;
    this.isReady = false;
    by("seal-part").hidden = true;
    this.say("It was changed since it was sent. Press Send: only what differs is sent.");
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    by("pause").textContent = isPaused ? "Go on" : "Pause";
    this.worker?.postMessage({ kind: isPaused ? "pause" : "resume" });
    this.seen = [];
    this.say(isPaused ? "Paused. What arrived stays there." : "Going on…");
  }

  stop(words, isBad = false) {
    this.worker?.postMessage({ kind: "stop" });
    this.worker?.terminate();
    this.worker = null;
    this.isMoving = false;
    for (const id of ["pause", "call-off"]) by(id).hidden = true;
    this.say(words, isBad);
    this.onState();
  }

  on_progress(data) {
    this.table.progress(data.files);
    const total = Math.max(1, data.total), there = data.held + data.sent;
    by("hash-bar").max = by("send-bar").max = total;
    by("hash-bar").value = data.hashed;
    by("send-bar").value = Math.min(there, total);
    const now = performance.now();
    // The time of hashing is no time of sending, and a rate over a moment is none.
    this.seen = data.hashed < data.total ? [] : [...this.seen.filter(([at]) => now - at < SPEED_OVER_MS), [now, data.sent]];
    const [firstAt, first] = this.seen[0] ?? [now, data.sent], seconds = (now - firstAt) / 1000;
    const speed = seconds * 1000 >= LEAST_PACE_MS ? (data.sent - first) / seconds : 0;
    const pace = speed > 0 && there < total ? `, ${sizeText(Math.round(speed))}/s, ${durationText((total - there) / speed)} to go` : "";
    by("hash-words").textContent = `${sizeText(data.hashed)} of ${sizeText(data.total)}`;
    const before = data.held ? `, ${sizeText(data.held)} of it was there already` : "";
    by("send-words").textContent = `${sizeText(Math.min(there, data.total))} of ${sizeText(data.total)}${before}${this.isPaused ? "" : pace}`;
    const tenth = Math.floor(Math.min(1, there / total) * 10);
    if (tenth > this.told && data.hashed >= data.total) {
      this.told = tenth;
      by("heard").textContent = `${tenth * 10} percent is sent.`;
    }
  }

  async on_hashed({ digests }) {
    this.say("Sending…");
    const known = new Map(digests);
    try {
      const files = this.files.map(({ path, blob }) => ({ path, size_bytes: blob.size, sha256: known.get(path) }));
      const { digest } = await this.api(`/models/${this.facts.slug}/releases:check`, { document: this.spec, files });
      for (const one of document.querySelectorAll("[data-digest]")) one.textContent = digest ?? "";
    } catch { /* the seal tells the digest too */ }
  }

  on_well() { if (!this.isPaused && by("sending-words").dataset.waits) { delete by("sending-words").dataset.waits; this.say("Sending…"); } }

  on_waiting({ status, seconds }) {
    if (this.isPaused) return;
    by("sending-words").dataset.waits = "1";
    const why = status === 0 ? "The connection is lost" : status === 403 ? "The address of a part ran out" : `The server or the store is busy (${status})`;
    const hint = status === 0 && this.facts.storeOrigin ? " If the network is fine, the bucket's CORS rule does not let this page in (docs/uploads.md)." : "";
    clearInterval(this.countdown);
    const until = performance.now() + seconds * 1000;
    const tell = () => {
      const left = Math.max(0, Math.ceil((until - performance.now()) / 1000));
      if (this.isPaused || !this.isMoving || !by("sending-words").dataset.waits) return clearInterval(this.countdown);
      this.say(`${why}; it tries again ${left ? `in ${left} s` : "now"}. Nothing that arrived is lost.${hint}`, true);
      if (!left) clearInterval(this.countdown);
    };
    tell();
    this.countdown = setInterval(tell, 1000);
  }

  on_failed({ message, errors, status, code }) {
    const more = (errors || []).slice(0, 20).map((one) => `${one.field}: ${one.message} ${one.fix}`).join(" ");
    const signIn = status === 401 || (status === 403 && code !== "forbidden") ? " Sign in again in another tab, then press Send: it goes on from here." : "";
    this.stop(`${message} ${message.includes(errors?.[0]?.message) ? "" : more}${signIn} What was sent stays there; press Send to go on.`, true);
  }

  async on_sent({ draft }) {
    this.worker.terminate();
    this.worker = null;
    for (const id of ["pause", "call-off"]) by(id).hidden = true;
    this.draft = draft;
    await this.verified();
  }

  // Until every file was read by the server.
  async verified() {
    for (let nudgedAt = performance.now(); ;) {
      let seen;
      try { seen = await this.api(`/releases/${this.draft}`); } catch (error) {
        if (error.status && error.status < 500 && error.status !== 429) return this.stop(`${error.message} Press Send to begin again.`, true);
        this.say(`${error.message} It looks again.`, true);
        await sleep(4 * LOOK_MS);
        continue;
      }
      if (seen.quarantined?.length) {
        return this.stop(`${seen.quarantined.map((one) => `${one.path}: ${one.problem}`).join(" ")} Choose the files again.`, true);
      }
      this.table.progress(seen.verifying.map((path) => [path, { state: "verifying" }]));
      if (!seen.missing.length) break;
      this.say(`Everything is sent; the server reads ${seen.verifying.length} of ${this.files.length} files once more, to verify them.`);
      if (performance.now() - nudgedAt > NUDGE_MS) {
        nudgedAt = performance.now();
        for (const upload of seen.uploads) await this.api(`/uploads/${upload}:complete`, {}).catch(() => {});
      }
      await sleep(LOOK_MS);
    }
    this.isMoving = false;
    this.isReady = true;
    by("send-words").textContent = by("send-words").textContent.replace(/, [^,]*\/s, .* to go$/, "");
    this.say("Everything is there and verified. Nothing is sealed yet.");
    by("heard").textContent = "Everything is sent and verified. The release can be sealed.";
    this.table.progress(this.files.map(({ path }) => [path, { state: "sent" }]));
    by("seal-part").hidden = false;
    this.onState();
  }

  async seal() {
    by("seal").disabled = true;
    const words = by("seal-words");
    words.classList.remove("bad");
    try {
      const sealed = await this.api(`/releases/${this.draft}/seal`, {});
      this.isSealed = true;
      this.onSealed();
      this.onState();
      by("sealed-part").hidden = false;
      by("seal-part").hidden = true;
      by("sealed-name").textContent = `${this.facts.slug} ${sealed.name}`;
      by("sealed-link").href = `${this.facts.modelUrl}r/${sealed.number}/`;
      for (const one of document.querySelectorAll("[data-digest]")) one.textContent = sealed.digest;
      by("sealed-waivers").hidden = !sealed.waivers_missing.length;
      by("sealed-part").focus();
      if (by("and-gates").checked && !sealed.waivers_missing.length) await this.gates(sealed.name);
    } catch (error) {
      words.classList.add("bad");
      words.textContent = `${error.message} ${error.errors.slice(0, 20).map((one) => `${one.field}: ${one.message} ${one.fix}`).join(" ")}`;
      by("seal").disabled = false;
      if (error.code === "no_such_release") this.isReady = false;
      if (error.code === "no_such_release") this.stop("The draft is gone: somebody discarded or sealed it. Press Send to begin again.", true);
    }
  }

  // Asking again begins no second run: a release has one at a time.
  async gates(name) {
    const words = by("gates-words"), until = Date.now() + GATES_PATIENCE_MS;
    for (;;) {
      try {
        const run = await this.api(`/models/${this.facts.slug}/releases/${name}/gate-runs`, {});
        by("gates-link").href = `/gate-runs/${run.id}/`;
        by("gates-link").hidden = false;
        words.textContent = "";
        return;
      } catch (error) {
        const after_ms = (error.retryAfter ?? 2) * 1000;
        const again = error.status !== 500 && mayComeBack(error.status) && Date.now() + after_ms < until;
        words.textContent = `The gates could not be started: ${error.message} ${again ? "Trying again." : "The release's page starts them, too."}`;
        if (!again) return;
        await sleep(after_ms);
      }
    }
  }
}
