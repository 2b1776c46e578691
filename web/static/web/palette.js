// The search from any page, and the keys that lead to places. Nothing here changes anything: it only opens addresses.
(() => {
  "use strict";
  const WAIT_MS = 120; // after the last key
  const SECOND_KEY_MS = 1500;
  const palette = document.getElementById("palette");
  if (!palette) return;
  const field = document.getElementById("palette-text");
  const list = document.getElementById("palette-hits");
  const said = document.getElementById("palette-said");
  let asking = null, timer = 0, chosen = -1, firstKey = 0;

  const hits = () => [...list.querySelectorAll("[role=option]")];
  function choose(at) {
    const all = hits();
    chosen = all.length ? (at + all.length) % all.length : -1;
    all.forEach((one, i) => one.setAttribute("aria-selected", String(i === chosen)));
    if (chosen < 0) return field.removeAttribute("aria-activedescendant");
    field.setAttribute("aria-activedescendant", all[chosen].id);
    all[chosen].scrollIntoView({block: "nearest"});
  }
  function show(html) {
    list.innerHTML = html; // our own server's fragment, escaped there
    const count = hits().length;
    field.setAttribute("aria-expanded", String(count > 0));
    said.textContent = field.value.trim() ? `${count || "Nothing"} found` : "";
    choose(0);
  }
  async function ask() {
    asking?.abort(); // an older answer must not replace a newer one
    asking = new AbortController();
    if (!field.value.trim()) return show("");
    try {
      const answer = await fetch(`${palette.dataset.search}?q=${encodeURIComponent(field.value)}`, {signal: asking.signal});
      if (answer.status === 401) said.textContent = "You are no longer signed in.";
      else if (answer.ok) show(await answer.text());
      else said.textContent = "The search does not answer. Enter opens its page.";
    } catch (error) {
      if (error.name !== "AbortError") said.textContent = "The server is not reached.";
    }
  }
  function open() {
    if (palette.open) return;
    palette.showModal();
    field.select();
  }
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, WAIT_MS); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter" && chosen >= 0) {
      event.preventDefault();
      location.assign(hits()[chosen].dataset.href);
    }
  });
  list.addEventListener("click", (event) => {
    const hit = event.target.closest("[role=option]");
    if (hit) location.assign(hit.dataset.href);
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
  for (const link of document.querySelectorAll("[data-opens=palette]")) {
    link.addEventListener("click", (event) => { event.preventDefault(); open(); });
  }

  // Single keys can be turned off (WCAG 2.2, 2.1.4): the page says so in data-keys.
  const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable], [popover], dialog[open]");
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      return open();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || document.documentElement.dataset.keys === "off") return;
    if (event.defaultPrevented || isTyping(event.target)) return;
    const now = Date.now();
    if (firstKey && now - firstKey < SECOND_KEY_MS) {
      firstKey = 0;
      const place = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (place) { event.preventDefault(); location.assign(place.href); }
    } else if (event.key === "g") {
      firstKey = now;
    } else if (event.key === "/") {
      event.preventDefault();
      open();
    } else if (event.key === "?") {
      event.preventDefault();
      location.assign(`${palette.dataset.page}#keys`);
    }
  });
})();
