// What a page that refreshes itself owes to who reads it. Served as a file: no script stands in a page.
(() => {
  "use strict";
  const SILENT_AFTER_S = 8; // four polls of a rollout's page; a slow answer alone is no news lost
  let heardAt = Date.now();
  let isSignedOut = false;

  const seconds = () => Math.round((Date.now() - heardAt) / 1000);
  const isPolling = () => document.querySelector("[hx-get][hx-trigger^='every']") !== null;

  // Says that the page is no longer the truth, and since when. A page whose laptop slept says so as well, until it hears again.
  function showSilence() {
    const line = document.getElementById("no-news");
    const isSilent = isPolling() && (isSignedOut || seconds() >= SILENT_AFTER_S);
    line.hidden = !isSilent;
    document.body.classList.toggle("silent", isSilent);
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

  document.addEventListener("htmx:after:request", (event) => {
    const status = event.detail?.ctx?.response?.status ?? 0;
    isSignedOut = status === 401;
    if (status >= 200 && status < 400) heardAt = Date.now();
    showSilence();
  });
  setInterval(showSilence, 1000);

  // A sheet that is open means what it showed when it was opened: the refreshed page leaves it alone.
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("[popover]")) event.target.toggleAttribute("hx-morph-skip", event.newState === "open");
  }, true);

  // A link to what lies folded away unfolds it, in browsers that do not do so themselves.
  const unfold = () => {
    const folded = location.hash && document.getElementById(location.hash.slice(1))?.closest("details");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
