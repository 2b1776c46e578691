// The table of files: a row for each with what is wrong with it and how far it is; at most 500 rows, the rest as a sum.
import { countText, shownName, sizeText } from "./words.js";

const MOST_ROWS = 500;
const WORDS = { hashing: "hashing", hashed: "hashed", sending: "sending", sent: "sent", there: "already there", verifying: "being verified" };

export class FilesTable {
  constructor(table, more, onRemove) {
    this.body = table.tBodies[0];
    this.more = more;
    this.onRemove = onRemove;
    this.rows = new Map();
    this.due = new Map();
  }

  show(files) {
    this.rows.clear();
    const rows = files.slice(0, MOST_ROWS).map(({ path, blob }) => this.row(path, blob.size));
    this.body.replaceChildren(...rows);
    const rest = files.slice(MOST_ROWS);
    this.more.textContent = rest.length
      ? `and ${countText(rest.length, "more file")}, ${sizeText(rest.reduce((sum, one) => sum + one.blob.size, 0))}` : "";
  }

  row(path, size) {
    const row = document.createElement("tr"), name = document.createElement("th");
    name.scope = "row";
    const code = document.createElement("code");
    code.textContent = shownName(path);
    code.dir = "ltr";
    const mistakes = document.createElement("ul");
    mistakes.className = "mistakes";
    mistakes.hidden = true;
    name.append(code, mistakes);
    const much = document.createElement("td");
    much.className = "num";
    much.textContent = sizeText(size);
    const how = document.createElement("td"), bar = document.createElement("progress"), word = document.createElement("span");
    bar.max = Math.max(1, size);
    bar.value = 0;
    bar.hidden = true;
    bar.setAttribute("aria-label", `${shownName(path)}, sent`);
    word.className = "how";
    how.append(bar, word);
    const last = document.createElement("td"), away = document.createElement("button");
    away.type = "button";
    away.textContent = "Leave out";
    away.setAttribute("aria-label", `Leave out ${shownName(path)}`);
    away.addEventListener("click", () => this.onRemove(path));
    last.append(away);
    row.append(name, much, how, last);
    this.rows.set(path, { bar, word, mistakes, away, size });
    return row;
  }

  // problems: [{file, message, fix}] of any files
  mistakes(problems) {
    for (const [path, row] of this.rows) {
      const own = problems.filter((one) => one.file === path);
      row.mistakes.hidden = !own.length;
      row.mistakes.replaceChildren(...own.map((one) => {
        const item = document.createElement("li");
        item.textContent = `${one.line ? `line ${one.line}, column ${one.column}: ` : ""}${one.message} ${one.fix}`;
        return item;
      }));
    }
  }

  lock(isLocked) { for (const row of this.rows.values()) row.away.hidden = isLocked; }

  // changes: [[path, {hashed?, sent?, state}]]; drawn once a frame
  progress(changes) {
    if (!this.due.size) requestAnimationFrame(() => this.draw());
    for (const [path, facts] of changes) this.due.set(path, facts);
  }

  draw() {
    for (const [path, facts] of this.due) {
      const row = this.rows.get(path);
      if (!row) continue;
      const isMoving = facts.state === "sending" || facts.state === "hashing";
      row.bar.hidden = !isMoving;
      row.bar.setAttribute("aria-label", `${shownName(path)}, ${facts.state}`);
      row.bar.value = row.size ? (facts.state === "hashing" ? facts.hashed : facts.sent) || 0 : 1;
      row.word.textContent = WORDS[facts.state] || "";
    }
    this.due.clear();
  }
}
