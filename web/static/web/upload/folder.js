// The rules of a release folder, as the command line has them (registry/core/archive.py): what is sent, what is left out, what
// must not be. Members are {name, kind: "file"|"folder"|"link"|"other", size, packed?, start?}; names are never mended.
export const DOCUMENT = "release.yaml";
const PARTS = ["artifact", "tokenizer"], CONFIGS = ["config.pbtxt", "artifact/config.pbtxt"];
const ADDED = ["__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"];
const MOST_MEMBERS = 21_000, LARGEST_RATIO = 1100;

const isAdded = (path) => {
  const parts = path.split("/"), last = parts[parts.length - 1];
  return ADDED.includes(parts[0]) || ADDED.includes(last) || last.startsWith("._");
};
const plain = (name) => name.replace(/\/$/, "").replace(/^\.\//, "");
const mistake = (file, message, fix) => ({ file, line: null, column: null, field: "", message, fix });

// "folder/" where everything lies in the release folder itself, else "".
function topOf(members) {
  const names = members.map((m) => plain(m.name));
  const tops = new Set(names.map((name) => name.split("/")[0]).filter((top) => top && top !== "." && !ADDED.includes(top)));
  const files = new Set(members.filter((m) => m.kind === "file").map((m) => plain(m.name)));
  if (tops.size !== 1 || files.has(DOCUMENT)) return "";
  const [top] = tops;
  return files.has(`${top}/${DOCUMENT}`) || (!PARTS.includes(top) && names.some((n) => PARTS.some((p) => n.startsWith(`${top}/${p}/`))))
    ? `${top}/` : "";
}

function unsafe(member) {
  const { name, kind } = member;
  if (kind === "link" || kind === "other") {
    return [mistake(name, `it is ${kind === "link" ? "a link" : "neither a file nor a folder"}; releases hold bytes.`,
      "Pack a copy of the file in its place.")];
  }
  const path = plain(name);
  if (kind === "folder" && (path === "" || path === ".")) return [];
  if (path.startsWith("/") || /^[A-Za-z]:/.test(path) || path.includes("\\") || path.includes("\0")
      || path.split("/").some((part) => part === "" || part === "." || part === "..")) {
    return [mistake(name, "its name is absolute, leads out of the folder, or has an empty part.", "Rename it.")];
  }
  if (member.packed !== undefined && member.size > LARGEST_RATIO * Math.max(member.packed, 1)) {
    return [mistake(name, `${member.size} bytes are said to be packed in ${member.packed}.`,
      "Pack the archive again; this one is damaged, or a bomb.")];
  }
  return [];
}

// One byte of an archive belongs to one member.
function overlapping(members) {
  const placed = members.filter((m) => m.start !== undefined).sort((a, b) => a.start - b.start);
  let end = 0;
  for (const member of placed) {
    if (member.start < end) {
      return [mistake(member.name, "its bytes are also those of another member.", "Pack the archive again; this one is damaged, or a bomb.")];
    }
    end = member.start + (member.packed ?? member.size);
  }
  return [];
}

// {document: member or null, files: [{path, member}], left: [names], problems}
export function judge(members) {
  const found = { document: null, files: [], left: [], problems: [] };
  if (members.length > MOST_MEMBERS) {
    found.problems.push(mistake("", `there are more than ${MOST_MEMBERS} members.`, "Choose only the release folder."));
    return found;
  }
  found.problems.push(...members.flatMap(unsafe), ...overlapping(members));
  if (found.problems.length) return found;
  const top = topOf(members), strange = new Set();
  for (const member of members) {
    const path = plain(member.name).slice(top.length);
    if (!path) continue;
    const folder = path.split("/")[0];
    if (isAdded(path)) { if (member.kind === "file") found.left.push(path); continue; }
    if (path.includes("/") && !PARTS.includes(folder)) {
      if (folder.startsWith(".")) found.left.push(path); else strange.add(folder);
      continue;
    }
    if (member.kind !== "file") continue;
    if (path === DOCUMENT) {
      if (found.document) found.problems.push(mistake(DOCUMENT, "there are two of it.", "Keep one."));
      found.document = member;
    } else if (PARTS.includes(folder) && path.includes("/") || CONFIGS.includes(path)) found.files.push({ path, member });
    else found.left.push(path);
  }
  for (const folder of [...strange].sort()) {
    found.problems.push(mistake(`${folder}/`, "it is neither artifact/ nor tokenizer/, and would not be sent.", "Move it, or leave it out."));
  }
  const seen = new Set();
  for (const { path } of found.files) {
    if (seen.has(path)) found.problems.push(mistake(path, "it is there twice.", "Keep one of the two."));
    seen.add(path);
  }
  return found;
}
