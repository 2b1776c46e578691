// Browser notifications, for who turned them on in this browser: what /_notices/ says of news, while a page is open and by its stream.
// There is no push service. Tabs look one after the other, and what one of them has shown no other shows again.
(() => {
  "use strict";
  const APART_MS = 1000;
  const REMEMBERED = 50;

  const { person, seq } = document.getElementById("live")?.dataset ?? {};
  if (!person) return;
  const at = (name) => `notices.${person}.${name}`; // another person at this browser has their own choice
  const read = (name) => localStorage.getItem(at(name)) ?? "";
  const write = (name, value) => localStorage.setItem(at(name), value);
  const isPossible = "Notification" in window && isSecureContext;
  const isOn = () => isPossible && Notification.permission === "granted" && read("on") === "yes";

  // --- looking

  let timer = 0;
  let lookedAt = 0;
  function look() {
    if (timer || !isOn()) return;
    const askedAt = Date.now();
    timer = setTimeout(() => {
      timer = 0;
      lookedAt = Date.now();
      navigator.locks.request("notices", () => lookOnce(askedAt)).catch(() => {}); // the next news look again
    }, Math.max(0, lookedAt + APART_MS - askedAt));
  }

  async function lookOnce(askedAt) {
    if (!isOn() || Number(read("looked")) > askedAt) return; // turned off meanwhile, or another tab has seen it
    const beganAt = Date.now();
    const answer = await fetch(`/_notices/?after=${Number(read("after")) || ""}`, { cache: "no-store" });
    if (!answer.ok) return;
    const news = await answer.json();
    if (!isOn()) return; // turned off while it was asked
    const shown = read("shown").split(" ");
    for (const { key, title, body, url } of news.notices) {
      if (shown.includes(key)) continue;
      shown.push(key);
      const notice = new Notification(title, { body, tag: key });
      notice.onclick = () => { notice.close(); open(url, "_blank", "noopener"); }; // what is typed here stays
    }
    write("shown", shown.slice(-REMEMBERED).join(" "));
    write("after", news.seq);
    write("looked", beganAt);
  }

  document.addEventListener("live:news", ({ detail }) => {
    if (!detail.topics || detail.topics.includes("approvals")) look();
  });

  // --- the switch, where a page has one

  const place = document.getElementById("browser-notices");
  const turnOn = place?.querySelector("[data-on]");
  const turnOff = place?.querySelector("[data-off]");

  function words() {
    if (!isPossible) return "This browser shows none here: they take a browser that knows them, and pages over HTTPS.";
    if (Notification.permission === "denied") {
      return "Your browser refuses notifications of this site. Allow them in its settings of the site, beside the address; then load this page again.";
    }
    return isOn() ? "They are on, in this browser, while a page of Sluicegate is open." : "They are off in this browser.";
  }
  function show() {
    if (!place) return;
    place.hidden = false;
    place.querySelector("[data-words]").textContent = words();
    turnOn.hidden = !isPossible || isOn() || Notification.permission === "denied";
    turnOff.hidden = !isOn();
  }

  turnOn?.addEventListener("click", async () => {
    if (await Notification.requestPermission() === "granted") {
      write("after", seq || "");
      write("on", "yes");
      look();
    }
    show();
    if (!turnOff.hidden) turnOff.focus();
  });
  turnOff?.addEventListener("click", () => {
    write("on", "no");
    show();
    turnOn.focus();
  });
  addEventListener("storage", show); // in another tab

  show();
  look();
})();
