// Sheets are modal: focus goes into them, stays there, and returns to the button that opened them. Without a script they open as popovers.
(() => {
  "use strict";
  const sheetOf = (button) => {
    const sheet = document.getElementById(button?.getAttribute("popovertarget") ?? "");
    return sheet instanceof HTMLDialogElement ? sheet : null;
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[popovertarget]");
    const sheet = sheetOf(button);
    if (sheet) {
      event.preventDefault();
      if (button.getAttribute("popovertargetaction") === "hide" || sheet.open) sheet.close();
      else open(sheet);
      return;
    }
    const box = event.target instanceof HTMLDialogElement && event.target.matches(".sheet") && event.target.getBoundingClientRect();
    if (!box) return; // a press beside the sheet closes it
    const isInside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
    if (!isInside && event.detail) event.target.close();
  });

  // The question itself gets the focus where there is nothing to type: the Enter key must press nothing.
  function open(sheet) {
    const field = sheet.querySelector("[autofocus]") ?? sheet.querySelector("input:not([type=hidden]), select, textarea");
    const question = sheet.querySelector("[id^=ask]");
    if (!field && question) question.tabIndex = -1;
    sheet.setAttribute("hx-morph-skip", ""); // an open sheet means what it showed when it was opened
    sheet.showModal();
    (field ?? question ?? sheet).focus();
  }
  document.addEventListener("close", (event) => {
    if (event.target.matches?.("dialog.sheet")) event.target.removeAttribute("hx-morph-skip");
  }, true);

  // A list that refreshes itself keeps the item whose sheet is open; the sheet then tells that it may be decided already.
  document.addEventListener("htmx:before:swap", (event) => {
    const sheet = event.target.matches?.("[data-keeps-sheets]") ? event.target.querySelector("dialog.sheet[open]") : null;
    if (!sheet) return;
    const text = String(event.detail?.ctx?.text ?? "");
    if (text.includes(`id="${sheet.id}"`)) return;
    event.preventDefault();
    if (sheet.querySelector(".decided")) return;
    const said = document.createElement("p");
    said.className = "notice waiting decided";
    said.setAttribute("role", "status");
    said.textContent = "This was decided or withdrawn while the sheet was open. What you typed stays. The rollout's page tells who decided.";
    sheet.querySelector("form").prepend(said);
    sheet.addEventListener("close", () => location.reload(), { once: true });
  });
})();
