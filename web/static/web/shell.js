// What the shell of every page does with a script; all of it works without one, or is not offered then (.needs-script).
(() => {
  "use strict";
  document.documentElement.classList.add("scripted");

  // A digest's copy button. Where the page may not write to the clipboard (plain HTTP), the text is selected, and copied the old way.
  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const chip = button.parentElement.querySelector(".digest");
      if (chip) getSelection().selectAllChildren(chip);
      if (!chip || !document.execCommand("copy")) return;
    }
    const said = document.getElementById("said");
    if (said) said.textContent = `Copied ${text}`;
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-copy]");
    if (button) copy(button);
    // An open menu closes when one looks elsewhere.
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
})();
