// A form whose file is looked at as soon as it is chosen: what the server says of it is put where `data-preview` names, and the
// file stays chosen, so that adding it is one press more. Without this the button does the same with a new page.
for (const form of document.querySelectorAll("form[data-preview]")) {
  const target = document.getElementById(form.dataset.preview), file = form.querySelector("input[type=file]");
  const button = form.querySelector("button[value=preview]");
  let number = 0;

  async function look() {
    const mine = ++number, said = new FormData(form);
    said.set("verb", "preview");
    target.textContent = "Reading…";
    let text = "", status = 0;
    try {
      const answer = await fetch(form.action, { method: "POST", body: said, redirect: "error" });
      [text, status] = [await answer.text(), answer.status];
    } catch { /* said below */ }
    if (mine !== number) return;
    const found = new DOMParser().parseFromString(text, "text/html"), part = found.getElementById(form.dataset.preview);
    const refusal = [...found.querySelectorAll(".messages li.error")].map((one) => one.textContent.trim()).join(" ");
    if (!part) target.textContent = status === 413 ? "The file is too large for this page: sluicegate model golden MODEL FILE takes it."
      : "It could not be looked at. Is the connection there, and are you still signed in?";
    else if (part.children.length) target.replaceChildren(...part.childNodes);
    else target.textContent = refusal;
  }

  file.addEventListener("change", () => { if (file.files.length) look(); });
  button.addEventListener("click", (event) => { event.preventDefault(); look(); });
}
