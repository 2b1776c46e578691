// The upload page: what was chosen, what is wrong with it, how far it is, and the seal. Hashing and sending is the worker's.
import { apiOf, csrfNow } from "./api.js";
import { isArchive, membersOf, Unreadable } from "./archives.js";
import { ofDrop, ofHandles, ofInput } from "./choose.js";
import { FilesTable } from "./files-table.js";
import { FolderRules } from "./folder.js";
import { forget, keepUnfinished, unfinished } from "./handles.js";
import { headsOf } from "./heads.js";
import { ReleaseForm } from "./release-form.js";
import { Sending } from "./sending.js";
import { countText, shownName, sizeText } from "./words.js";

const TYPING_MS = 400;
const root = document.querySelector("[data-upload]"), by = (id) => document.getElementById(id);
const facts = root.dataset, api = apiOf(() => csrfNow(facts.csrf));
const rules = new FolderRules(JSON.parse(facts.rules));
const state = { files: [], problems: [], heads: new Map(), unread: [], checking: 0, isChosen: false, isFine: false, spec: null, handles: [], source: "", original: null, kept: null };

const table = new FilesTable(by("files"), by("more-files"), (path) => take(state.files.filter((one) => one.path !== path)));
const form = new ReleaseForm(root, (document, isText) => checkSoon(document, isText));
const sending = new Sending({ facts, api, table, onState: moved, onSealed: () => { state.kept = null; forget(facts.slug); } });
root.hidden = false;
const locked = () => sending.isMoving || sending.isSealed;

function say(id, text, isBad = false) {
  by(id).textContent = text;
  by(id).classList.toggle("bad", isBad);
}

// --- choosing

// Takes members in the place of what was chosen before, or beside it.
async function chosen(members, { source, beside = false, handles = [] }) {
  if (locked()) return say("chosen", "An upload is under way: pause and call it off before you choose other files.", true);
  say("chosen", "Reading…");
  try {
    let from = members, archive = null;
    if (members.length === 1 && isArchive(members[0].name)) {
      archive = members[0].file;
      from = await membersOf(archive);
    }
    const found = rules.judge(from), loose = found.document || found.files.length || beside ? [] : rules.asArtifact(from);
    // Files without a folder can only be the model's. Of a folder without release.yaml the person says so.
    const isLoose = loose.length > 0 && from.every((one) => !one.name.includes("/"));
    if (isLoose) Object.assign(found, { files: loose, left: [], problems: [] });
    offerAsArtifact(isLoose ? [] : loose, source, archive, handles);
    const files = await blobsOf(found.files, archive);
    state.problems = found.problems;
    state.isChosen = true;
    state.handles = handles;
    state.source = archive ? archive.name : source;
    const text = found.document ? await textOf(await found.document.open()) : null;
    const more = beside ? state.files.filter((one) => !files.some((other) => other.path === one.path)) : [];
    if (text !== null) useText(text);
    const left = found.left.length ? ` Left out: ${found.left.slice(0, 5).map(shownName).join(", ")}${found.left.length > 5 ? " …" : ""}.` : "";
    await take([...more, ...files]);
    say("chosen", `${countText(state.files.length, "file")}, ${sizeText(sumOf(state.files))}.${left}${text === null && !beside ? " No release.yaml came along: write it below." : ""}`);
    noteResumed();
  } catch (error) {
    say("chosen", error instanceof Unreadable ? error.message : `It cannot be read: ${error.message || error}.`, true);
  }
}

async function textOf(blob) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await blob.arrayBuffer());
  } catch {
    throw new Unreadable(`${rules.document} is not UTF-8. Save it as UTF-8.`);
  }
}

const blobsOf = (files, archive) => Promise.all(files.map(async ({ path, member }) => ({
  path, blob: await member.open(), modified: (archive ?? member.file).lastModified, source: archive ? archive.name : "", crc: archive ? member.crc : undefined,
})));

// A folder without release.yaml that has a model at its top, such as an exporter writes.
function offerAsArtifact(files, source, archive, handles) {
  const button = by("as-artifact");
  button.hidden = !files.length;
  button.textContent = files.length === 1 ? "Take this file as artifact/" : `Take these ${files.length} files as artifact/`;
  button.onclick = async () => {
    button.hidden = true;
    try {
      Object.assign(state, { problems: [], handles: archive ? [] : handles, source: archive ? archive.name : source });
      await take(await blobsOf(files, archive));
      say("chosen", `${countText(state.files.length, "file")}, ${sizeText(sumOf(state.files))}. Write release.yaml below.`);
    } catch (error) {
      say("chosen", `It cannot be read: ${error.message || error}.`, true);
    }
  };
}

const sumOf = (files) => files.reduce((total, one) => total + one.blob.size, 0);

function useText(text) {
  const kept = state.kept;
  state.original = text;
  form.text.value = kept && kept.original === text ? kept.text : text;
}

async function take(files) {
  sending.changed();
  state.files = files.sort((a, b) => (a.path < b.path ? -1 : 1));
  table.show(state.files);
  by("file-table").hidden = !state.files.length;
  const { heads, unread } = state.files.length > rules.most_files ? { heads: new Map(), unread: [] } : await headsOf(state.files);
  Object.assign(state, { heads, unread });
  await check(form.text.value);
}

// --- checking

let typing = 0;
function checkSoon(document, isText) {
  if (locked()) return;
  clearTimeout(typing);
  state.checking++;  // an answer that is still on its way is about what was there before
  state.isFine = false;
  sending.changed();
  moved();
  typing = setTimeout(() => check(document), isText ? TYPING_MS : 0);
}

async function check(document) {
  const mine = ++state.checking;
  const files = state.files.map(({ path, blob }) => ({ path, size_bytes: blob.size, ...state.heads.get(path) }));
  say("checked", "Checking…");
  let answer;
  try {
    answer = await api(`/models/${facts.slug}/releases:check`, { document, files });
  } catch (error) {
    if (mine === state.checking) { say("checked", `It could not be checked: ${error.message}`, true); by("check-again").hidden = false; }
    return;
  }
  if (mine !== state.checking) return;
  by("check-again").hidden = true;
  if (typeof document !== "string") form.text.value = answer.text ?? form.text.value;
  form.show(answer);
  const problems = inOrder(answer.problems, state.problems);
  state.isFine = !problems.length;
  state.spec = answer.document;
  table.mistakes(problems);
  const isBegun = state.isChosen || state.files.length > 0 || !problems.every((one) => !one.line);
  showMistakes(isBegun ? problems : []);
  const waivers = answer.waivers_needed.length ? ` It carries code and needs a waiver (${answer.waivers_needed.join(", ")}) before it runs.` : "";
  const offered = answer.runs_nowhere ? ` It cannot run now: ${answer.runs_nowhere}` : "";
  const unread = state.unread.length ? ` Read when they are sealed: ${state.unread.slice(0, 5).map(shownName).join(", ")}${state.unread.length > 5 ? " …" : ""}.` : "";
  const warned = answer.warnings.map((one) => ` ${one}`).join("");
  const found = problems.length ? `${countText(problems.length, "mistake")}.` : `Nothing is wrong, as far as headers tell.${waivers}${offered}${warned}${unread}`;
  root.dispatchEvent(new CustomEvent("checked", { detail: { problems } }));
  say("checked", isBegun ? found : "Nothing is chosen yet: begin with the release folder.", isBegun && Boolean(problems.length));
  moved();
}

// The order of every door: release.yaml from its top, then the folder, then its files. A mistake that both sides found is shown once.
function inOrder(ofServer, ofFolder) {
  const known = new Set(ofFolder.map((one) => `${one.file}\n${one.message}`)), isText = (one) => one.file === rules.document;
  const rest = ofServer.filter((one) => !isText(one) && !known.has(`${one.file}\n${one.message}`));
  return [...ofServer.filter(isText), ...ofFolder, ...rest];
}

function showMistakes(problems) {
  const known = new Set(state.files.map((one) => one.path)), rest = problems.filter((one) => !known.has(one.file) || !table.rows.has(one.file));
  by("mistakes").replaceChildren(...rest.map((one) => {
    const item = document.createElement("li"), where = document.createElement(one.line ? "button" : "span");
    where.className = "where";
    where.textContent = `${shownName(one.file) || "files"}${one.line ? `:${one.line}:${one.column}` : ""}`;
    if (one.line) { where.type = "button"; where.addEventListener("click", () => goTo(one.line, one.column)); }
    item.append(where, ` ${one.field && one.field !== one.file && one.file ? `${one.field}: ` : ""}${one.message} ${one.fix}`);
    return item;
  }));
}

function goTo(line, column) {
  const at = form.text.value.split("\n").slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0) + column - 1;
  form.text.focus();
  form.text.setSelectionRange(at, at + 1);
}

// --- sending

function moved() {
  const isLocked = locked();
  by("send").disabled = isLocked || sending.isReady || !state.isFine || !state.files.length;
  for (const one of root.querySelectorAll("[data-choose]")) one.disabled = isLocked;
  form.text.readOnly = isLocked;
  for (const field of form.fields) field.disabled = isLocked || !form.document;
  table.lock(isLocked);
}

by("send").addEventListener("click", async () => {
  by("send").disabled = true;
  const upload = {
    slug: facts.slug, source: state.source, text: form.text.value, original: state.original, count: state.files.length,
    bytes: sumOf(state.files), handles: state.handles, at: Date.now(),
  };
  if (await keepUnfinished(facts.slug, upload) === undefined) await keepUnfinished(facts.slug, { ...upload, handles: [] });
  sending.start(state.files, state.spec);
});
by("check-again").addEventListener("click", () => check(form.text.value));

// --- what was begun before

function noteResumed() {
  if (state.kept) say("resume-words", "This goes on with what was begun: press Send, and only what is missing is sent.");
}

async function offerResume() {
  const kept = state.kept = await unfinished(facts.slug) ?? null;
  if (!kept) return;
  by("resume").hidden = false;
  const what = `${kept.source || "An upload"}, ${countText(kept.count, "file")}, ${sizeText(kept.bytes)}, begun ${new Date(kept.at).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  say("resume-words", `${what}, is not finished. Choose the same files again, and only what is missing is sent.`);
  by("resume-go").hidden = !kept.handles?.length;
  by("resume-go").addEventListener("click", async () => {
    say("resume-words", "The browser asks whether this page may read the folder. If it does not, choose the same folder again below.");
    for (const handle of kept.handles) if (await handle.requestPermission({ mode: "read" }) !== "granted") return;
    await chosen(await ofHandles(kept.handles), { source: kept.source, handles: kept.handles });
  });
  by("resume-forget").addEventListener("click", async () => {
    await forget(facts.slug);
    state.kept = null;
    by("resume").hidden = true;
  });
}

// --- wiring

const topName = (members) => members[0]?.name.split("/")[0] ?? "";
function wire(id, folder, beside) {
  by(id).addEventListener("change", () => {
    const members = ofInput(by(id).files, folder);
    if (members.length) chosen(members, { source: topName(members), beside });
    by(id).value = "";
  });
}
wire("choose-folder", "", false);
wire("choose-archive", "", false);
wire("choose-artifact", "artifact/", true);
wire("choose-tokenizer", "tokenizer/", true);

const drop = by("drop");
for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
// Beside the zone a file would replace the page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  const { members, handles } = ofDrop(event.dataTransfer);
  try {
    const found = await members;
    await chosen(found, { source: topName(found), handles: await handles });
    if (!found.length) say("chosen", "Nothing was dropped that holds a file: an empty folder is no release.", true);
  } catch (error) {
    say("chosen", `It cannot be read: ${error.message}.`, true);
  }
});
window.addEventListener("beforeunload", (event) => { if (sending.isMoving) event.preventDefault(); });
if (!window.isSecureContext) by("insecure").hidden = false;
offerResume();
check(form.text.value);
