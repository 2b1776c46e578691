// A file that is chosen, or dropped on a text field, becomes the text of that field: `data-text-file` names the field.
const MOST_BYTES = 256 * 1024;

async function read(file, field, asked) {
  if (!file) return;
  const isShort = file.size <= MOST_BYTES;
  field.setCustomValidity(isShort ? "" : "The file is longer than 256 KiB.");
  if (!isShort) return field.reportValidity();
  field.value = await file.text();
  field.dispatchEvent(new Event("input", { bubbles: true }));
  asked?.focus();
}

for (const row of document.querySelectorAll("[data-text-file]")) {
  const field = document.getElementById(row.dataset.textFile), chooser = row.querySelector("input[type=file]");
  row.hidden = false;
  chooser.addEventListener("change", () => read(chooser.files[0], field));
  field.addEventListener("dragover", (event) => event.preventDefault());
  field.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    read(event.dataTransfer.files[0], field, field);
  });
}
