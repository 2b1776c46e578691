// Times pass on the screen too, and are told in UTC or, where somebody chose so, in this machine's own zone.
(() => {
  "use strict";
  const KEY = "sluicegate.times";
  const LOCAL = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  let isLocal = stored() === "local";

  // `12 s ago`, `3 min ago`, `in 40 s`, `for 12 s`: as the server words it.
  function ago(at, now, lasts) {
    const distance = Math.trunc((now - at) / 1000);
    const size = Math.abs(distance);
    const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, most]) => size >= most) ?? ["s", 1];
    const text = `${Math.floor(size / length)} ${unit}`;
    if (distance < 0) return `in ${text}`;
    return lasts ? `for ${text}` : `${text} ago`;
  }

  function absolute(at) {
    if (!isLocal) return `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    const minutes = -at.getTimezoneOffset();
    const two = (number) => String(Math.floor(number)).padStart(2, "0");
    const size = Math.abs(minutes);
    return `${LOCAL.format(at)} ${minutes < 0 ? "−" : "+"}${two(size / 60)}:${two(size % 60)}`;
  }

  const put = (place, text) => { if (place && place.textContent !== text) place.textContent = text; };

  function tick() {
    const now = Date.now();
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      const relative = time.querySelector(".ago");
      if (Number.isNaN(at.getTime()) || !relative) continue;
      put(relative, ago(at.getTime(), now, time.classList.contains("lasts")));
      const text = absolute(at);
      put(time.querySelector(".at"), text);
      if (time.title !== text) time.title = text;
    }
  }

  const button = document.getElementById("times-zone");
  function say() {
    if (!button) return;
    button.textContent = isLocal ? "Show UTC" : "Show local times";
    put(document.getElementById("times-are"), isLocal ? "Times are local." : "Times are UTC.");
  }
  button?.addEventListener("click", () => {
    isLocal = !isLocal;
    try { localStorage.setItem(KEY, isLocal ? "local" : "utc"); } catch { /* for this page alone, then */ }
    say();
    tick();
  });
  document.addEventListener("htmx:after:swap", () => setTimeout(tick));
  setInterval(tick, 1000);
  say();
  tick();
})();
