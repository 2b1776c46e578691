// release.yaml as a text and as fields: whichever is changed, the server's reading of it fills the other.
const dig = (document, path) => path.split(".").reduce((inside, part) => inside?.[part], document);

function put(document, path, value) {
  const parts = path.split("."), last = parts.pop();
  let inside = document;
  for (const part of parts) {
    if (typeof inside[part] !== "object" || inside[part] === null) inside[part] = {};
    inside = inside[part];
  }
  if (value === undefined) delete inside[last]; else inside[last] = value;
}

const labelsOf = (text) => Object.fromEntries(text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
  const [name, ...value] = line.split("=");
  return [name.trim(), value.join("=").trim()];
}));

export class ReleaseForm {
  // `onChange(document, isText)`: the text, or the document that the fields make.
  constructor(root, onChange) {
    this.text = root.querySelector("#release-text");
    this.fields = [...root.querySelectorAll("[data-field]")];
    this.onChange = onChange;
    this.document = null;  // the last that was read
    this.serving = null;  // the suggested
    this.text.addEventListener("input", () => onChange(this.text.value, true));
    for (const field of this.fields) field.addEventListener("change", () => this.changed(field));
    root.querySelector("#take-serving").addEventListener("click", () => this.takeServing());
    this.root = root;
  }

  // What the server read; the fields follow, but not the one that is being typed in.
  show(answer) {
    this.document = answer.document;
    this.serving = answer.suggested_serving;
    this.root.querySelector("#take-serving").disabled = !this.serving || !answer.document;
    this.offer(answer.runtimes);
    for (const field of this.fields) {
      field.disabled = !answer.document;
      if (!answer.document || field === document.activeElement) continue;
      const value = dig(answer.document, field.dataset.field);
      if (field.dataset.kind === "labels") field.value = Object.entries(value ?? {}).map(([n, v]) => `${n}=${v}`).join("\n");
      else this.set(field, value === undefined || value === null ? "" : String(value));
    }
  }

  set(field, value) {
    if (field.tagName === "SELECT" && ![...field.options].some((one) => one.value === value)) field.add(new Option(value || "–", value));
    field.value = value;
  }

  offer(runtimes) {
    const image = this.fields.find((one) => one.dataset.field === "runtime.image");
    for (const one of runtimes) {
      if (![...image.options].some((known) => known.value === one.image)) {
        image.add(new Option(`${one.image} (${one.backends.join(", ")}; ${one.nodes.join(", ")})`, one.image));
      }
    }
  }

  changed(field) {
    if (!this.document) return;
    const made = structuredClone(this.document), text = field.value.trim();
    const value = field.dataset.kind === "labels" ? labelsOf(text) : field.dataset.kind === "number" && /^-?\d+$/.test(text) ? Number(text) : text;
    const isEmpty = text === "" || field.dataset.kind === "labels" && !Object.keys(value).length;
    put(made, field.dataset.field, isEmpty ? undefined : value);
    this.hand(made);
  }

  // The next change is one of this document, though the server has not read it yet.
  hand(made) {
    this.document = made;
    this.onChange(made, false);
  }

  takeServing() {
    if (!this.document || !this.serving) return;
    const made = structuredClone(this.document);
    made.serving = { max_batch_size: 1, ...made.serving, ...this.serving };
    this.hand(made);
  }
}
