// The rules of a release folder: what is sent, what is left out, what must not be. The lists and the words are the server's
// (registry/core/folder_rules.py, which has the same steps for the command line); tests/pages/test_folder_rules.py compares both.
// Members are {name, kind: "file"|"folder"|"link"|"other", size, packed?, start?}; names are never mended.

export class FolderRules {
  constructor(rules) {
    Object.assign(this, rules);
    this.names = new Set(rules.added.names);
    this.oneFile = [rules.document, ...rules.configs];
  }

  mistake(file, word, facts = {}) {
    const [message, fix] = this.words[word];
    const told = message.replace(/\{(\w+)\}/g, (_, name) => facts[name]);
    return { file, line: null, column: null, field: file ? "path" : "files", message: told, fix };
  }

  // The path as far as the part that a system or a tool added; "" if it has none.
  addedPart(path) {
    const parts = path.split("/");
    const at = parts.findIndex((part) => {
      const name = part.toLowerCase();
      return this.names.has(name) || this.added.prefixes.some((one) => name.startsWith(one))
        || this.added.endings.some((one) => name.endsWith(one));
    });
    return at < 0 ? "" : parts.slice(0, at + 1).join("/") + (at + 1 < parts.length ? "/" : "");
  }

  // "folder/" if everything lies in the release folder itself, else "".
  topOf(members) {
    const named = members.map((one) => [plain(one.name), one.kind]);
    const tops = new Set(named.map(([name]) => name.split("/")[0]).filter((top) => top && top !== "." && !this.addedPart(top)));
    const files = new Set(named.filter(([, kind]) => kind === "file").map(([name]) => name));
    if (tops.size !== 1 || files.has(this.document)) return "";
    const [top] = tops;
    const hasParts = !this.parts.includes(top) && named.some(([name]) => this.parts.some((part) => name.startsWith(`${top}/${part}/`)));
    return files.has(`${top}/${this.document}`) || hasParts ? `${top}/` : "";
  }

  wrongKind(path, kind) {
    if (kind === "link") return "link";
    if (kind === "other") return "special";
    if (this.parts.includes(path)) return kind === "file" ? "file_for_folder" : "";
    return this.oneFile.includes(path) && kind === "folder" ? "folder_for_file" : "";
  }

  // {files: [{path, member}], document: member or null, left: [paths], problems}
  arrange(members) {
    const found = { document: null, files: [], left: [], problems: [] };
    if (members.length > this.most_members) {
      found.problems.push(this.mistake("", "too_many_members", { most: this.most_members }));
      return found;
    }
    const top = this.topOf(members), left = new Set(), misplaced = new Set(), seen = new Set(), blocked = new Set();
    for (const member of members) {
      const path = plain(member.name).slice(top.length), [folder] = path.split("/"), isInside = path.includes("/");
      if (!path || path === ".") continue;
      const added = this.addedPart(path);
      if (added) { left.add(added === path && member.kind === "folder" ? `${added}/` : added); continue; }
      const above = this.oneFile.find((one) => path.startsWith(`${one}/`));
      if (above) { if (!blocked.has(above)) found.problems.push(this.mistake(above, "folder_for_file")); blocked.add(above); continue; }
      if (this.parts.includes(folder) || this.oneFile.includes(path)) {
        const word = this.wrongKind(path, member.kind);
        if (word && !blocked.has(path)) found.problems.push(this.mistake(path, word));
        if (word) blocked.add(path);
        else if (member.kind === "file" && seen.has(path)) found.problems.push(this.mistake(path, "twice"));
        else if (member.kind === "file") {
          seen.add(path);
          if (path === this.document) found.document = member; else found.files.push({ path, member });
        }
      } else if (isInside || member.kind === "folder") {
        if (folder.startsWith(".")) left.add(`${folder}/`); else misplaced.add(folder);
      } else left.add(path);
    }
    found.problems.sort(byFile);
    for (const folder of [...misplaced].sort()) found.problems.push(this.mistake(`${folder}/`, "misplaced"));
    if (found.files.length > this.most_files) {
      found.problems.push(this.mistake("", "too_many_files", { count: found.files.length, most: this.most_files }));
    }
    found.left = [...left].sort();
    return found;
  }

  // Files of a folder without release.yaml that has a model at its top: [{path: "artifact/…", member}]; [] for any other folder.
  asArtifact(members) {
    if (this.unsafe(members).length) return [];
    const files = members.filter((one) => one.kind === "file" && !this.addedPart(plain(one.name)));
    const tops = new Set(files.map((one) => plain(one.name).split("/")[0]));
    const isFolder = tops.size === 1 && files.every((one) => plain(one.name).includes("/"));
    const cut = isFolder ? [...tops][0].length + 1 : 0;
    const placed = files.map((member) => ({ path: `artifact/${plain(member.name).slice(cut)}`, member }));
    return placed.some(({ path }) => this.models.includes(path.slice("artifact/".length))) ? placed : [];
  }

  // What no archive may hold, wherever it lies: names that leave the folder, and members that claim too much.
  unsafe(members) {
    const problems = members.flatMap((member) => {
      const path = plain(member.name);
      if (member.kind === "folder" && (path === "" || path === ".")) return [];
      if (path.startsWith("/") || /^[A-Za-z]:/.test(path) || path.includes("\\") || path.includes("\0")
          || path.split("/").some((part) => part === "" || part === "." || part === "..")) {
        return [this.mistake(member.name, "unsafe")];
      }
      const isDense = member.packed !== undefined && member.size > this.largest_ratio * Math.max(member.packed, 1);
      return isDense ? [this.mistake(member.name, "packed", { size: member.size, packed: member.packed })] : [];
    });
    return [...problems, ...this.overlapping(members)];
  }

  // One byte of an archive belongs to one member.
  overlapping(members) {
    const placed = members.filter((one) => one.start !== undefined).sort((a, b) => a.start - b.start);
    let end = 0;
    for (const member of placed) {
      if (member.start < end) return [this.mistake(member.name, "overlapping")];
      end = member.start + (member.packed ?? member.size);
    }
    return [];
  }

  // As `arrange`, after the names were found safe.
  judge(members) {
    const unsafe = this.unsafe(members.slice(0, this.most_members));
    return unsafe.length ? { document: null, files: [], left: [], problems: unsafe } : this.arrange(members);
  }
}

const plain = (name) => name.replace(/\/$/, "").replace(/^\.\//, "");
const byFile = (a, b) => (a.file < b.file ? -1 : a.file > b.file ? 1 : 0);
