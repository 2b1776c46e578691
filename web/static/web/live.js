// What a live page owes to who reads it. Elements with `data-live="rollout:5 approvals"` are fetched again (`hx-get`) when the event
// stream says that one of these topics changed, and every 5 s while there is no stream. While the stream lives, only elements with
// `data-live-every` are polled.
(() => {
  "use strict";
  const SILENT_AFTER_S = 12;
  const POLL_MS = 5000;
  const APART_MS = { visible: 1000, hidden: 5000 }; // between two looks at one element
  const BEHIND_MS = 3000;
  const ICONS = { running: "▸", waiting: "‖", bad: "✕", ok: "✓", idle: "■" };
  const COLOURS = { running: "#2563c9", waiting: "#b26a00", bad: "#c62828", ok: "#2e7d32", idle: "#6b7280" };

  const said = document.getElementById("live")?.dataset ?? {};
  let stream = "begins"; // of the stream: begins, live, lost, signed-out
  let wasLive = false;
  let lostAt = Date.now();
  let polledAt = 0;
  let heardAt = Date.now();
  let isSignedOut = false;
  let isLeaving = false; // by a form that was sent
  let hasLeft = false;
  const looks = new Map(); // element's id → {timer, at, askedAt}: when it was looked at, and is to be

  const elements = () => [...document.querySelectorAll("[data-live][hx-get]")];
  // What the page itself shows, without the navigation around it.
  const ownElements = () => elements().filter((element) => !("liveAside" in element.dataset));
  const seconds = () => Math.round((Date.now() - heardAt) / 1000);
  // An element may ask for more (`data-live-apart`, ms), such as one with costly plots.
  const apart = (element) => Math.max(APART_MS[document.visibilityState] ?? 0, Number(element?.dataset?.liveApart) || 0);

  // --- looking again

  // Once, a moment later, however often it is asked for meanwhile: many pages hear of an event at the same instant.
  function look(element) {
    const known = looks.get(element.id) ?? { timer: 0, at: 0, askedAt: 0 };
    looks.set(element.id, known);
    known.askedAt = known.askedAt || Date.now();
    if (known.timer) return;
    const rest = known.at + apart(document.getElementById(element.id)) - Date.now();
    known.timer = setTimeout(() => {
      known.timer = 0;
      known.at = Date.now();
      const now = document.getElementById(element.id);
      if (now?.hasAttribute("hx-get")) htmx.trigger(now, "refresh");
      else looks.delete(element.id);
    }, Math.max(rest, Math.random() * 300));
  }
  const lookAtAll = () => elements().forEach(look);

  function pollIfLost() {
    const isLost = stream !== "live" && (!wasLive || Date.now() - lostAt >= SILENT_AFTER_S * 1000);
    if (!isLost || document.visibilityState === "hidden" || Date.now() - polledAt < (isSignedOut ? 6 : 1) * POLL_MS) return;
    polledAt = Date.now();
    lookAtAll();
  }

  // Figures change without an event: an element with `data-live-every` (ms) is fetched as often while it is seen.
  function lookAtFigures() {
    if (document.visibilityState === "hidden") return;
    for (const element of elements()) {
      const every = Number(element.dataset.liveEvery) || 0;
      if (!every) continue;
      const known = looks.get(element.id) ?? { timer: 0, at: Date.now(), askedAt: 0 };
      looks.set(element.id, known);
      if (!known.timer && Date.now() - known.at >= every) look(element);
    }
  }

  // What ends by the clock, such as an undo window, is no event that the stream could tell of.
  function lookAtWhatEnded() {
    for (const time of document.querySelectorAll("[data-live][hx-get] [data-ends] time"))
      if (new Date(time.dateTime) <= Date.now()) look(time.closest("[data-live]"));
  }

  document.addEventListener("htmx:after:request", (event) => {
    const context = event.detail?.ctx;
    const status = context?.response?.status ?? 0;
    const known = looks.get(context?.sourceElement?.id);
    if (status === 401) isSignedOut = true;
    if (status >= 200 && status < 400) {
      isSignedOut = false;
      if (!("liveAside" in (context.sourceElement?.dataset ?? {}))) heardAt = Date.now(); // of what the page itself shows
      if (known && !known.timer) known.askedAt = 0;
    }
    if (known && status === 404) leave(); // what was on the screen is no longer this person's to see
    show();
  });
  document.addEventListener("htmx:after:swap", () => setTimeout(show));
  document.addEventListener("submit", () => { isLeaving = true; setTimeout(() => { isLeaving = false; }, 10000); });

  // The page as it is now for this person: a sign-in page, "there is nothing here", or itself.
  function leave() {
    if (hasLeft) return;
    hasLeft = true;
    setTimeout(() => { if (!isLeaving) location.reload(); }, 500 + Math.random() * 1000);
  }

  // --- the stream

  function hear({ state, topics, isReset, isBeat, bye, isExpired }) {
    if (state && state !== stream) {
      if (stream === "live") lostAt = Date.now();
      if (state === "live") wasLive = true;
      stream = state;
    }
    if (topics || isReset || isBeat) heardAt = Date.now();
    if (topics) for (const element of elements()) if (element.dataset.live.split(" ").some((one) => topics.includes(one))) look(element);
    if (isReset) lookAtAll();
    if (bye && isExpired) lookAtAll(); // its 401 says the rest, and what was typed stays
    else if (bye) leave();
    show();
  }

  let port = null;
  let ownStream = null;
  async function join() {
    if (!said.worker || !said.person) return;
    if (window.SharedWorker) {
      port = new SharedWorker(said.worker).port;
    } else {
      if (!window.liveStream) await loaded(said.worker);
      const own = new MessageChannel(); // one stream for this page, closed while it is hidden
      ownStream ??= window.liveStream();
      ownStream.connect(own.port2);
      port = own.port1;
    }
    port.onmessage = ({ data }) => hear(data);
    port.postMessage({ joins: { after: Number(said.seq) || 0, person: said.person } });
    said.seq = ""; // whoever comes back to this page later has missed more than it knows
  }
  const part = () => { port?.postMessage({ leaves: true }); port = null; };
  const loaded = (source) => new Promise((done) => {
    const script = Object.assign(document.createElement("script"), { src: source, onload: done });
    document.head.append(script);
  });
  addEventListener("pagehide", part);
  addEventListener("pageshow", (event) => { if (event.persisted) join(); });
  document.addEventListener("visibilitychange", () => {
    if (!window.SharedWorker && document.visibilityState === "hidden") part();
    else if (!port) join();
    if (document.visibilityState === "visible") for (const [id, known] of looks) if (known.askedAt) look({ id });
  });

  // --- what the page says of itself

  // Says that the page is no longer the truth, and since when. A page whose laptop slept says so as well, until it hears again.
  function showSilence() {
    const line = document.getElementById("no-news");
    const isSilent = ownElements().length > 0 && (isSignedOut || seconds() >= SILENT_AFTER_S);
    line.hidden = !isSilent;
    document.body.classList.toggle("silent", isSilent);
    // Said once to those who hear the page; the seconds are for those who see it.
    const said = document.getElementById("no-news-said");
    const words = !isSilent ? "" : isSignedOut ? "You are no longer signed in." : "No news: the server is not reached.";
    if (said.textContent !== words) said.textContent = words;
    if (!isSilent) return;
    const since = `No news since ${seconds()} s: what you see may have changed.`;
    if (!isSignedOut) {
      line.textContent = `${since} The server is not reached; this page goes on trying.`;
      return;
    }
    const link = document.createElement("a");
    link.href = `/sign-in/?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "Sign in again";
    line.replaceChildren(`You are no longer signed in. ${since} `, link);
  }

  const WORDS = {
    begins: ["Connecting", "News is on its way."],
    live: ["Live", "News comes as it happens."],
    behind: ["Behind", "There is news, and it is being fetched."],
    lost: ["Not live", "There is no event stream; this page asks every 5 s."],
    "signed-out": ["Signed out", "Sign in again to see what is new."],
  };
  function showState() {
    const place = document.getElementById("live");
    if (!place) return;
    const isBehind = [...looks].some(([id, known]) =>
      known.askedAt && Date.now() - known.askedAt > BEHIND_MS + apart(document.getElementById(id)));
    const now = isSignedOut ? "signed-out" : stream === "live" && isBehind ? "behind" : stream;
    place.hidden = !ownElements().length;
    document.body.dataset.liveState = now;
    if (place.dataset.state === now) return;
    place.dataset.state = now;
    [place.textContent, place.title] = WORDS[now];
  }

  // The tab follows the state of what the page is about, also while another one is in front.
  function showSubject() {
    const kind = (document.querySelector("main [data-subject]") ?? document.querySelector("[data-subject]"))?.dataset.subject;
    const plain = document.title.replace(/^[▸‖✕✓■] /, "");
    const title = ICONS[kind] ? `${ICONS[kind]} ${plain}` : plain;
    if (document.title !== title) document.title = title;
    const link = document.querySelector("link[rel=icon]");
    if (!link || (link.dataset.kind ?? "") === (kind ?? "")) return;
    link.dataset.plain ??= link.href;
    link.dataset.kind = kind ?? "";
    if (!ICONS[kind]) { link.href = link.dataset.plain; return; }
    const drawn = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="8" fill="${COLOURS[kind]}"/></svg>`;
    link.href = `data:image/svg+xml,${encodeURIComponent(drawn)}`;
  }

  function show() {
    showSilence();
    showState();
    showSubject();
  }

  setInterval(() => { pollIfLost(); lookAtFigures(); lookAtWhatEnded(); show(); }, 1000);
  join();
  show();

  // A link to what lies folded away unfolds it, in browsers that do not do so themselves.
  const unfold = () => {
    const folded = location.hash && document.getElementById(location.hash.slice(1))?.closest("details");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
