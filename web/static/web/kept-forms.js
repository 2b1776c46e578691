// What is typed survives the end of a session: it is kept in this tab when a form is sent, and filled in again after signing in,
// for the same person alone.
(() => {
  "use strict";
  const KEY = "sluicegate.sent";
  const MOST = 1 << 20; // characters
  const read = () => { try { return JSON.parse(sessionStorage.getItem(KEY)); } catch { return null; } };
  const write = (kept) => {
    try {
      if (kept) sessionStorage.setItem(KEY, JSON.stringify(kept));
      else sessionStorage.removeItem(KEY);
    } catch { /* what is too long for the browser is not kept */ }
  };
  const person = () => document.getElementById("live")?.dataset.person ?? "";
  const isSignIn = Boolean(document.querySelector("form[data-sign-in]"));
  const isOurs = (field) => field.name && !["csrfmiddlewaretoken", "version", "next"].includes(field.name)
    && !["password", "file", "hidden", "submit", "button"].includes(field.type);

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (isSignIn || form.method !== "post" || form.querySelector("input[type=password]")) return;
    const fields = [...form.elements].filter(isOurs)
      .map((field) => [field.name, ["checkbox", "radio"].includes(field.type) ? [field.value, field.checked] : field.value]);
    const kept = { person: person(), page: location.pathname + location.search, action: form.getAttribute("action") ?? "", fields };
    write(fields.length && JSON.stringify(kept).length < MOST ? kept : null);
  });

  const kept = read();
  if (!kept) return;
  const page = new URL(kept.page, location.href).pathname;
  if (isSignIn) {
    write({ ...kept, hasEnded: true });
    const said = document.createElement("p");
    said.className = "notice waiting";
    said.setAttribute("role", "status");
    said.textContent = "Your session ended before the form was sent. What you typed is kept in this tab: sign in to go on.";
    document.querySelector("form[data-sign-in]").before(said);
    return;
  }
  if (!kept.hasEnded) { write(null); return; } // it arrived
  if (!person() || kept.person !== person()) { write(null); return; } // another person signed in
  if (location.pathname !== page) {
    if (kept.isLed) { write(null); return; }
    write({ ...kept, isLed: true }); // signing in leads to another page than the form's
    location.replace(kept.page);
    return;
  }
  write(null);
  const forms = [...document.forms].filter((form) => form.method === "post");
  const form = forms.find((one) => (one.getAttribute("action") ?? "") === kept.action
    && kept.fields.some(([name]) => one.elements.namedItem(name))) ?? null;
  if (!form) return;
  const seen = new Map();
  for (const [name, value] of kept.fields) {
    const same = [...form.elements].filter((field) => field.name === name && isOurs(field));
    const nth = seen.get(name) ?? 0;
    seen.set(name, nth + 1);
    const field = same[nth];
    if (!field) continue;
    if (Array.isArray(value)) field.checked = value[1];
    else field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }
  const said = document.createElement("p");
  said.className = "notice waiting";
  said.setAttribute("role", "status");
  said.textContent = "Your session had ended, so nothing was sent. What you typed is here again: check it, and send it once more.";
  const sheet = form.closest("dialog.sheet");
  (sheet ?? form).before(said);
  said.scrollIntoView({ block: "center" });
})();
